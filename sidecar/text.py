"""Text for people: what a terminal can show of it, how much of that fits, and durations, costs and counts in words.

Standard library only, and what is slow to import only where it is needed.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Agents print what they like. Longer than any screen is wide, so that a line of a mebibyte costs nothing.
_LONGEST = 2048
_MOST_KNOWN = 4096
_TAB = "    "
_SEQUENCES = (
    r"\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"  # CSI: colours, cursor
    r"|\x9b[0-?]*[ -/]*(?:[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$|(?=\x1b))"  # OSC and its like
    r"|\x1b[ -/]*(?:[0-~]|$)"
)
_MODIFIERS = ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF), (0x1F3FB, 0x1F3FF))  # variants, skin tones


# --- what can be shown


def printable(text: str, replacement: str = " ", *, keep: str = "") -> str:
    """The text with every character replaced that a terminal would act on, but for those in `keep`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else replacement for one in text)


def one_line(text: str, longest: int = 60) -> str:
    """The text as one line of at most `longest` printable characters."""
    line = printable(" ".join(text.split()), "")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def clean(text: str) -> str:
    """One line without escape sequences, control characters, and characters that change how others are shown.

    As on a terminal, what follows a carriage return replaces what stood before it.
    """
    text = text[:_LONGEST].rstrip("\r\n")
    if text.isascii() and text.isprintable():
        return text
    import re  # noqa: PLC0415 - most texts are plain

    text = re.sub(_SEQUENCES, "", text).replace("\r\n", "\n")
    text = next((part for part in reversed(text.split("\r")) if part), "")
    return text.translate(_CLEAN)


class _Clean(dict[int, str]):
    """What is shown for a character, by its code point."""

    def __missing__(self, code: int) -> str:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        self[code] = shown = self._shown(chr(code))
        return shown

    def _shown(self, character: str) -> str:
        import unicodedata  # noqa: PLC0415

        if character == "\t":
            return _TAB
        category = unicodedata.category(character)
        if category in ("Zl", "Zp") or character in "\n\v\f":
            return " "
        if category == "Cs":  # half of a pair cannot be written at all
            return "\ufffd"
        # Cf has joiners, which make terminals disagree about widths, and marks that turn the writing direction around.
        is_modifier = any(first <= ord(character) <= last for first, last in _MODIFIERS)
        return "" if category in ("Cc", "Cf") or is_modifier else character


_CLEAN = _Clean()


# --- how much of it fits


def width(text: str) -> int:
    """How many cells a clean text takes."""
    return len(text) if text.isascii() else sum(map(_CELLS.__getitem__, text))


def cut(text: str, cells: int) -> str:
    """The beginning of a clean text that fits, with an ellipsis where something is missing."""
    if width(text) <= cells:
        return text
    if cells < 1:
        return ""
    kept, used = [], 0
    for character in text:
        used += _CELLS[character]
        if used > cells - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def first_fitting(cells: int, *variants: str) -> str:
    """The first of several wordings, from the longest to the shortest, that fits; else the last one, cut."""
    return next((text for text in variants if width(text) <= cells), cut(variants[-1], cells))


def wrapped(line: str, indent: int) -> str:
    """The line as several, all but the first indented, where standard output is a terminal that is too narrow.

    Elsewhere it stays in one piece: programs read by the line.
    """
    import os  # noqa: PLC0415

    try:
        columns = os.get_terminal_size(1).columns
    except OSError:
        return line
    if len(line) < columns or columns <= 2 * indent:
        return line
    import textwrap  # noqa: PLC0415 - most lines fit

    # Behind the indent only: the spaces between columns are no place to break a line.
    parts = textwrap.wrap(line[indent:], columns - 1 - indent, break_on_hyphens=False)
    return f"\n{' ' * indent}".join([line[:indent] + parts[0], *parts[1:]]) if parts else line


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The rows as lines: every column as wide as its widest cell, but for the last."""
    widths = [max(map(len, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    return ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]) for row in rows]


class _Cells(dict[str, int]):
    """How many cells a character takes."""

    def __missing__(self, character: str) -> int:
        import unicodedata  # noqa: PLC0415

        if len(self) >= _MOST_KNOWN:
            self.clear()
        is_wide = unicodedata.east_asian_width(character) in ("W", "F")
        self[character] = cells = 0 if unicodedata.category(character) in ("Mn", "Me") else 1 + is_wide
        return cells


_CELLS = _Cells()


# --- amounts in words


def duration(seconds_s: float) -> str:
    """`28s`, `5m 42s`, `1h 05m`, `2d 3h`: never more than two units."""
    whole = max(0, int(seconds_s))
    if whole < 60:
        return f"{whole}s"
    minutes, seconds = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {seconds:02}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes:02}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"


def age(timestamp: str, now: float) -> str:
    """How long ago a moment was, given in ISO 8601."""
    from datetime import datetime  # noqa: PLC0415

    return duration(now - datetime.fromisoformat(timestamp).timestamp())


def cost(usd: float) -> str:
    """Dollars; more digits where there are few dollars."""
    return f"${usd:,.2f}" if usd >= 10 else f"${usd:.4f}"


def tokens(count: int) -> str:
    """`950`, `12.3k`, `4.56M`."""
    if count < 1_000:
        return str(count)
    # What would be rounded up to 1000k is a million.
    return f"{count / 1e3:.1f}k" if count < 999_950 else f"{count / 1e6:.2f}M"


def share(done: int, of: int) -> str:
    """`12 / 50 (24%)`. Never 100 before the end."""
    return f"{done} / {of} ({int(100 * done / of) if of else 100}%)"
