"""What is made of the contract: its checks, its reports, and the pages that are generated from it."""
