"""What an event holds, taken for what it has to be, whatever it is: a display never ends a run."""

from __future__ import annotations


def text(value: object) -> str:
    """Empty for nothing."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def count(value: object) -> int:
    """0 for whatever counts nothing."""
    return value if isinstance(value, int) and value > 0 else 0


def cost(told: object, known: float | None = None) -> float | None:
    """In dollars; what was known where nothing is told."""
    return float(told) if isinstance(told, (int, float)) else known


def tokens(told: object) -> int:
    """A total, or its parts; what came from a cache is part of the input."""
    if isinstance(told, dict):
        return count(told.get("input")) + count(told.get("output"))
    return count(told)


def message(error: object) -> str:
    """An error of a step or a task in words."""
    return text(error.get("message") if isinstance(error, dict) else error)
