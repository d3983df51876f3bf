"""Between processes: frames on a socket, everything that crosses, and how a process ends."""
