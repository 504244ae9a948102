"""Signals: the files `.stop` and `.abort`, who watches them, and what they ask for."""
