"""The engine's own thread, and one step of it: schedule, run, sample, publish."""
