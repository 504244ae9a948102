"""Text from anywhere, made fit for a terminal: nothing in it acts, and its width in cells is known."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

# Agents print what they like. Longer than any screen is wide, so that a line of a mebibyte costs nothing.
_LONGEST = 2048
_TAB = "    "
_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*(?:[@-~]|$)"  # CSI: colours, cursor
    r"|\x9b[0-?]*[ -/]*(?:[@-~]|$)"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$|(?=\x1b))"  # OSC and its like
    r"|\x1b[ -/]*(?:[0-~]|$)"
)
_MODIFIERS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef\U0001f3fb-\U0001f3ff]")  # variants, skin tones
_PLAIN = re.compile(r"[ -~]*")


def clean(text: str) -> str:
    """One line without escape sequences, control characters, and characters that change how others are shown.

    As on a terminal, what follows a carriage return replaces what stood before it.
    """
    text = text[:_LONGEST].rstrip("\r\n")
    if _PLAIN.fullmatch(text):
        return text
    text = _SEQUENCES.sub("", text).replace("\r\n", "\n")
    text = next((part for part in reversed(text.split("\r")) if part), "")
    return "".join(map(_shown, text))


@lru_cache(maxsize=4096)
def _shown(character: str) -> str:
    if character == "\t":
        return _TAB
    category = unicodedata.category(character)
    if category in ("Zl", "Zp") or character in "\n\v\f":
        return " "
    if category == "Cs":  # half of a pair cannot be written at all
        return "\ufffd"
    # Cf has joiners, which make terminals disagree about widths, and marks that turn the writing direction around.
    return "" if category in ("Cc", "Cf") or _MODIFIERS.fullmatch(character) else character


@lru_cache(maxsize=4096)
def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def width(text: str) -> int:
    """How many cells a clean text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def cut(text: str, cells: int) -> str:
    """The beginning of a clean text that fits, with an ellipsis where something is missing."""
    if width(text) <= cells:
        return text
    if cells < 1:
        return ""
    kept, used = [], 0
    for character in text:
        used += _cells(character)
        if used > cells - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def first_fitting(cells: int, *variants: str) -> str:
    """The first of several wordings, from the longest to the shortest, that fits; else the last one, cut."""
    return next((text for text in variants if width(text) <= cells), cut(variants[-1], cells))
