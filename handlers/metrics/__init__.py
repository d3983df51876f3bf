"""What the server counts, a row of numbers for each process, and how it is shown."""
