"""The engine in a process of its own: spawned, supervised, and reached over a private socket."""
