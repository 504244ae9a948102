"""How `stop` and `abort` end: their exit codes, and words that reach a person if anything can reach them."""

from __future__ import annotations

import os

WRITTEN, FAILED, BAD_USAGE, NOT_PROVEN, INTERRUPTED = 0, 1, 2, 4, 130


def say(text: str) -> None:
    """Tell the person. By now the signal stands, and a terminal that cannot take the text must not deny that."""
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode("ascii"), flush=True)
    except OSError:  # a pipe that nobody reads, a full disk: the interpreter would try again at its end, and fail
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
