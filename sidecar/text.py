"""Text as a terminal, a log or a picture can show it: printable characters only, and as much as fits."""

from __future__ import annotations


def printable(text: str, replacement: str = " ", *, keep: str = "") -> str:
    """The text with every character replaced that a terminal would act on, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else replacement for one in text)


def one_line(text: str, longest: int = 60) -> str:
    """The text as one line of at most `longest` printable characters."""
    line = printable(" ".join(text.split()), "")
    return line if len(line) <= longest else line[: longest - 1] + "…"
