"""What the engine says about a failed expression, as an error that its author understands."""

from __future__ import annotations

import re

from sidecar.errors import ExpressionError
from sidecar.state.script_worker import MEMORY, REALM_LINE

# Where code was read is said bare, where it ran in brackets; a JSON text that it read is said bare, too.
_READ = re.compile(r"^<input>:([0-9]+):([0-9]+)")
_RAN = re.compile(r"\(<input>:([0-9]+):([0-9]+)\)")
_STACK = "\n    at "
# Before the source in what the engine reads: one line.
PROLOGUE_LINES = 1
_LONGEST = 500


def too_slow(time_limit_s: float) -> ExpressionError:
    """It was ended at its limit."""
    return ExpressionError(f"it took longer than {time_limit_s:g} s of computing and was ended", kind="time")


def too_large(memory_limit_mb: float) -> ExpressionError:
    """It was ended at its limit."""
    return ExpressionError(f"it needed more than {memory_limit_mb:g} MiB of memory and was ended", kind="memory")


def explain(status: bytes, text: str, source: str, time_limit_s: float, memory_limit_mb: float) -> ExpressionError:
    """The error behind what the engine said."""
    said, _, stack = text.partition(_STACK)
    said = " ".join(said.split())
    # Where there is no room even for an error, the engine throws null; an expression has to say `throw` for that.
    no_room = said == "Error: thrown: null" and "throw" not in source
    if status == MEMORY or no_room or said in ("InternalError: out of memory", "InternalError: string too long"):
        return too_large(memory_limit_mb)
    if said == "InternalError: interrupted":
        return too_slow(time_limit_s)
    if said == "RangeError: Maximum call stack size exceeded":
        return ExpressionError("it calls itself too deeply, or is nested too deeply", kind="stack")
    kind = "value" if said.startswith("TypeError: the result ") else "runtime"
    line, column = _place(_RAN, stack, source)
    shown = said if len(said) <= _LONGEST else said[:_LONGEST] + "…"
    return ExpressionError(shown, kind=kind, line=line, column=column)


def syntax(text: str, source: str) -> ExpressionError:
    """The error behind what the engine said about source that it cannot read."""
    said, _, stack = text.partition(_STACK)
    if said.startswith("InternalError: out of memory"):
        return ExpressionError("SyntaxError: it is too long", kind="syntax")
    if said.startswith(("RangeError", "InternalError")):
        return ExpressionError("SyntaxError: it is nested too deeply", kind="syntax")
    line, column = _place(_READ, stack, source)
    frame = _READ.search(stack)
    lines = source.rstrip().split("\n")
    if frame and int(frame[1]) > len(lines) + PROLOGUE_LINES:
        end = len(lines[-1]) + 1
        return ExpressionError("SyntaxError: it ends too early", kind="syntax", line=len(lines), column=end)
    return ExpressionError(" ".join(said.split()), kind="syntax", line=line, column=column)


def _place(frame: re.Pattern[str], stack: str, source: str) -> tuple[int | None, int | None]:
    """Line and column inside the source of the innermost frame that is there."""
    lines = source.split("\n")
    for match in frame.finditer(stack):
        line, column = int(match[1]), int(match[2])
        if line > REALM_LINE:
            continue
        line -= PROLOGUE_LINES
        return (line, column) if 1 <= line <= len(lines) else (None, None)
    return None, None
