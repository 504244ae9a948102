"""Run AI coding agents unattended, and be able to stop them."""

__version__ = "0.1.0"
