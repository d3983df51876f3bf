"""Measurements: each is one command, with fixed seeds and a named peer; results/ has one file per machine."""
