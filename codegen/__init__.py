"""What is made of the contract: its checks, its reports, and the code that is generated from it."""
