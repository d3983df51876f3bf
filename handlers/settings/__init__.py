"""The table of settings, and how it is read: command line, environment and documentation come from it."""
