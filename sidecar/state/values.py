"""Values between Python and JavaScript: JSON text, and beside it the numbers that JSON does not have."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from sidecar.errors import ExpressionError

Path = tuple[str | int, ...]
LARGEST = 2**53 - 1  # above, neighbouring integers are one number to JavaScript
# How deep a value may be nested. Python itself reads and writes a few hundred levels, fewer the more calls it is in:
# what is kept here has to be written wherever the run comes to.
DEEPEST = 200
_MAYBE_LARGE = re.compile("[1-9][0-9]{15}")
_ODD = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# ASCII only: lone surrogates travel as escapes, and the text is its own UTF-8.
encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def pack(value: object, what: str) -> tuple[str, str]:
    """JSON text, and the odd numbers in it as JSON text too, empty where there are none. `what` is for the error."""
    try:
        text = encode(value)
    except RecursionError:
        raise ExpressionError(f"{what} is nested too deeply for an expression", kind="value") from None
    except TypeError as error:
        raise ExpressionError(f"{what} is not data that an expression can read: {error}", kind="value") from None
    except ValueError as error:
        if "ircular" in str(error):
            raise ExpressionError(f"{what} refers to itself", kind="value") from None
        odd: list[tuple[Path, str]] = []
        text = encode(_without_odd(value, (), odd))
        return _exact(text, value, what), encode(odd)
    return _exact(text, value, what), ""


def array(*texts: str) -> str:
    """A JSON array of values that are JSON text already; empty texts are left out."""
    return f"[{','.join(filter(None, texts))}]"


def unpack(text: str) -> Any:
    """What the realm's `encode` gave: JSON, or `u`ndefined, which is None, or `o`dd numbers and then JSON."""
    kind = text[:1]
    if kind == "u":
        return None
    try:
        if kind != "o":
            return _decode(text)
        odd, text = text[1:].split("\n", 1)
        value = _decode(text)
        for path, name in json.loads(odd):
            if not path:
                return _ODD[name]
            target = value
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = _ODD[name]
    except RecursionError:
        raise ExpressionError("the result is nested too deeply", kind="value") from None
    # A text without that many brackets cannot be deeper.
    if text.count("[") + text.count("{") > DEEPEST and too_deep(value):
        raise ExpressionError(f"the result is nested more than {DEEPEST} levels deep", kind="value")
    return value


def same(one: object, other: object) -> bool:
    """Whether no expression can distinguish them: true is not 1, but 1.0 is, and NaN is itself."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return len(one) == len(other) and all(key in other and same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return False  # the two booleans are single objects
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other):
        return True
    return bool(one == other)


def _decode(text: str) -> Any:
    # JavaScript writes large floats as digits too, and a float they have to stay: as an integer it would be refused
    # when it goes back in.
    return json.loads(text, parse_int=_number) if _MAYBE_LARGE.search(text) else json.loads(text)


def _number(digits: str) -> int | float:
    number = int(digits)
    return number if abs(number) <= LARGEST else float(digits)


def _without_odd(value: object, path: Path, odd: list[tuple[Path, str]]) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        odd.append((path, "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"))
        return None
    if isinstance(value, dict):
        return {key: _without_odd(one, (*path, key), odd) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_odd(one, (*path, index), odd) for index, one in enumerate(value)]
    return value


def _exact(text: str, value: object, what: str) -> str:
    # A search of the text costs a tenth of a visit to every value, which only texts full of digits need.
    if _MAYBE_LARGE.search(text) and (large := _large(value, what)):
        place, number = large
        hint = "JavaScript cannot represent it exactly; keep it as text"
        raise ExpressionError(f"{place} is {number}: {hint}", kind="value")
    return text


def _large(value: object, place: str) -> tuple[str, int] | None:
    if isinstance(value, int):
        return (place, value) if abs(value) > LARGEST else None
    found = None
    if isinstance(value, dict):
        found = (_large(one, f"{place}.{key}") for key, one in value.items())
    elif isinstance(value, list | tuple):
        found = (_large(one, f"{place}[{index}]") for index, one in enumerate(value))
    return next(filter(None, found), None) if found else None


def too_deep(value: object, most: int = DEEPEST) -> bool:
    """Whether a value is nested deeper than so many levels."""
    level = [value] if isinstance(value, dict | list | tuple) else []
    while level and most > 0:
        most -= 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list | tuple)
        ]
    return bool(level)


def truthy(value: object) -> bool:
    """Whether a condition with this value holds in JavaScript, where empty lists and objects are true."""
    if isinstance(value, dict | list):
        return True
    return bool(value) and value == value  # noqa: PLR0124 - NaN is not itself, and is false


def plain(value: object, what: str) -> Any:
    """A copy of its own, of nothing but data; ExpressionError where there is something else."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ExpressionError(f"{what} has the key {key!r}, which is not a text", kind="value")
        return {key: plain(one, what) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, what) for one in value]
    raise ExpressionError(f"{what} holds a {type(value).__name__}, which is not data", kind="value")


def glimpse(value: object, most: int = 200) -> Any:
    """The value, or, where it is large, its beginning: for people to look at. A long text counts as several values."""
    budget = most

    def seen(one: object) -> Any:
        nonlocal budget
        budget -= 1
        if isinstance(one, str):
            budget -= min(len(one), 1000) // 20
        if isinstance(one, str) and len(one) > 1000:
            return f"{one[:1000]}… ({len(one)} characters)"
        if not isinstance(one, dict | list):
            return one
        kept: list[Any] = []
        for item in one.items() if isinstance(one, dict) else one:
            if budget <= 0:
                break
            kept.append((seen(item[0]), seen(item[1])) if isinstance(one, dict) else seen(item))
        missing = len(one) - len(kept)
        if isinstance(one, dict):
            return dict([*kept, ("…", f"{missing} more")] if missing else kept)
        return [*kept, f"… {missing} more"] if missing else kept

    return seen(value)
