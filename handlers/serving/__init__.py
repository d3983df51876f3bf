"""A server's life: its processes, its port, its log, and its end."""
