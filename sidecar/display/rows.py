"""Rows of a screen before they have colours: pieces of clean text, each with the name of a style."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from sidecar.display import cells

if TYPE_CHECKING:
    from collections.abc import Iterable

StyleName = Literal["plain", "dim", "strong", "good", "warn", "bad", "frame"]
Span = tuple[str, StyleName]
Row = tuple[Span, ...]


def fitted(spans: Iterable[Span], width: int) -> Row:
    """Exactly so wide: cut where it is too long, filled with blanks where it is too short."""
    row: list[Span] = []
    left = width
    for text, style in spans:
        shown = cells.cut(text, left)
        if shown:
            row.append((shown, style))
            left -= cells.width(shown)
        if shown != text:
            break
    if left:
        row.append((" " * left, "plain"))
    return tuple(row)


def framed(body: Iterable[Row | str], width: int, title: str, corner: str) -> list[Row]:
    """A box around rows that are four cells narrower than it; a word is a line across with that word in it."""
    bottom: Row = (("╰" + "─" * (width - 2) + "╯", "frame"),)
    return [_top(width, title, corner), *(_inside(row, width) for row in body), bottom]


def unframed(body: Iterable[Row | str], width: int) -> list[Row]:
    """The same without a box."""
    return [_line("─", row, "─", width) if isinstance(row, str) else row for row in body]


def _inside(row: Row | str, width: int) -> Row:
    return _line("├", row, "┤", width) if isinstance(row, str) else (("│ ", "frame"), *row, (" │", "frame"))


def _line(left: str, word: str, right: str, width: int) -> Row:
    said = f" {word} " if word else ""
    return ((f"{left}─", "frame"), (said, "dim"), ("─" * (width - 3 - len(said)) + right, "frame"))


def _top(width: int, title: str, corner: str) -> Row:
    room = width - 6
    title = cells.cut(title, room)
    left = room - cells.width(title)
    shown = f" {corner} ─" if corner and cells.width(corner) + 6 <= left else ""
    line = "─" * (left + 1 - cells.width(shown))
    return (("╭─ ", "frame"), (title, "strong"), (f" {line}", "frame"), (shown, "dim"), ("╮", "frame"))
