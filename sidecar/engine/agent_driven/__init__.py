"""Runs whose steps an agent asks for: what it is handed, and what it reports."""
