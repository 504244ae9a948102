"""Durations as people write them: a number is milliseconds, `30s`, `1.5h` and `1h30m` say their unit."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
# Units only get smaller: `30m1h` is more likely a slip than a duration.
_PARTS = re.compile(r"\s*".join(rf"(?:({_NUMBER.pattern})\s*{unit})?" for unit in _UNITS_S), re.ASCII)
_LONGEST_TEXT = 64
_FEW = 1000  # a number below this more likely says seconds than milliseconds
_LONGEST_S = 100 * 365 * 86400.0  # far above any limit that means something, far below what a clock can add


def seconds(value: object) -> float:
    """A duration in seconds. ValueError says what was wrong and what would be right.

    A number in quotes means what it means without them, because variables and flags only have text.
    """
    result = math.nan
    if isinstance(value, str):
        result = _from_text(value.strip().lower())
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1000 * _LONGEST_S:
        result = value / 1000
    if not 0 <= result <= _LONGEST_S:
        shown = repr(value)
        shown = shown if len(shown) <= _LONGEST_TEXT else shown[:_LONGEST_TEXT] + "…"
        raise ValueError(f"{shown} is not a duration: write milliseconds (1500) or a unit (30s, 5m, 2h, 1h30m)")
    return result


def text(seconds_s: float) -> str:
    """A duration as people write it: 500ms, 2s, 1h30m."""
    if seconds_s < 1:
        return f"{round(seconds_s * 1000)}ms" if seconds_s else "0s"
    shown = ""
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60)):
        count, seconds_s = divmod(seconds_s, length_s)
        shown += f"{int(count)}{unit}" if count else ""
    return shown + (f"{seconds_s:.3g}s" if seconds_s or not shown else "")


def doubt(value: object) -> str | None:
    """What to tell the author of a number without a unit that is so small that seconds were probably meant."""
    text = "" if isinstance(value, bool) else str(value).strip()
    if not _NUMBER.fullmatch(text) or not 0 < float(text) < _FEW:
        return None
    return f"{text} without a unit means milliseconds; write {text}s for seconds, or {text}ms"


def keys(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The keys of a part of a definition that hold durations, each with its field: those keep seconds, and say so."""
    for name, field in model.model_fields.items():
        if field.alias is not None and name == f"{field.alias}_s":
            yield field.alias, name


def _from_text(text: str) -> float:
    if len(text) > _LONGEST_TEXT:
        return math.nan
    if _NUMBER.fullmatch(text):
        return float(text) / 1000
    parts = _PARTS.fullmatch(text)
    if not text or parts is None:
        return math.nan
    return sum(float(part) * unit_s for part, unit_s in zip(parts.groups(), _UNITS_S.values(), strict=True) if part)
