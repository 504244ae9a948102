"""Lines for people that fit their terminal: broken between words, and what follows stands below what it belongs to."""

from __future__ import annotations

import os


def fitted(line: str, indent: int) -> str:
    """The line as several, all but the first indented, where standard output is a terminal that is too narrow.

    Elsewhere it stays in one piece: programs read by the line.
    """
    try:
        width = os.get_terminal_size(1).columns
    except OSError:
        return line
    if len(line) < width or width <= 2 * indent:
        return line
    import textwrap  # noqa: PLC0415 - most lines fit

    # Behind the indent only: the spaces between columns are no place to break a line.
    parts = textwrap.wrap(line[indent:], width - 1 - indent, break_on_hyphens=False)
    return f"\n{' ' * indent}".join([line[:indent] + parts[0], *parts[1:]]) if parts else line
