"""Definitions found by name: in the project, in the person's home, built in."""
