"""What an output means: the formats that a step may ask for, from a text to the value that becomes its result."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.model.steps import OutputFormat


# A colon parts key and value only before a blank: the one in `http://` does not.
_PAIR = re.compile(r"([^=:\s](?:[^=:]|:(?!\s|$))*)(?:=|:(?=\s|$))(.*)")
_SHOWN_CHARACTERS = 60


def formatted(text: str, output_format: OutputFormat) -> Any:
    """The value of an output; StepFailed says what does not fit the format.

    text: as it is, without the line break at its end (one, where there are several).
    lines: a list, line breaks removed; what follows the last one is a line only if it is not empty.
    json: exactly one JSON value, blanks around it allowed.
    key_value: an object of texts from lines `key=value` or `key: value`. Blanks around key and value, and one pair of
    quotes around the whole value, do not count; of a key that comes twice the last counts. Empty lines, comments
    (`# …`) and lines that are no pair are passed over, since tools print headings; but an output that has lines and
    not one pair is an error, since it is something else than its author took it for.
    """
    return _FORMATS[output_format](text)


def nothing(output_format: OutputFormat) -> Any:
    """The value of an output that went elsewhere: what the format has for nothing, and null for JSON."""
    return None if output_format == "json" else formatted("", output_format)


def _text(text: str) -> str:
    return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def _lines(text: str) -> list[str]:
    # Not splitlines(): a form feed or a U+2028 inside a line is no end of it.
    lines = text.split("\n")
    if "\r" in text:
        lines = [line.removesuffix("\r") for line in lines]
    if not lines[-1]:
        lines.pop()
    return lines


def _json(text: str) -> Any:
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise _misfit("is not JSON: it is empty")
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + _SHOWN_CHARACTERS].partition("\n")[0]
        place = f"line {error.lineno}, column {error.colno}"
        raise _misfit(f"is not JSON: {error.msg} at {place}" + (f": {near!r}" if near else "")) from None
    except RecursionError:
        raise _misfit("is not usable JSON: it is nested too deeply") from None
    except ValueError as error:  # a constant of ours, or a number with more digits than Python reads
        raise _misfit(f"is not usable JSON: {error}") from None


def _key_value(text: str) -> dict[str, str]:
    said = [line for line in map(str.strip, _lines(text)) if line and not line.startswith("#")]
    pairs = [pair for pair in map(_PAIR.fullmatch, said) if pair is not None]
    if said and not pairs:
        raise _misfit(f"has no line `key=value` or `key: value`; it begins with {said[0][:_SHOWN_CHARACTERS]!r}")
    return {pair[1].rstrip(): _unquoted(pair[2].strip()) for pair in pairs}


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" and value[0] not in value[1:-1]
    return value[1:-1] if quoted else value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which JSON does not know")


def _misfit(what: str) -> StepFailed:
    return StepFailed(f"the output {what}", kind="output")


_FORMATS: dict[str, Callable[[str], Any]] = {"text": _text, "lines": _lines, "json": _json, "key_value": _key_value}


# JSON in the answer of an agent that was asked for it, and that wraps it in prose or in a fence all the same.


# Only the end of an answer is searched: what was asked for stands there, and hostile text costs no more than this.
_SEARCHED = 64 * 1024
_TRIES = 256
_FENCE = "```"
_COUNT = re.compile(r"[*_`\s]*(\d{1,9})[*_`.\s]*", re.ASCII)


def fenced(text: str) -> list[str]:
    """What stands in the fenced blocks of a text, the last one first. A block without an end is none."""
    blocks: list[str] = []
    block: list[str] | None = None
    for line in text.split("\n"):
        mark = line.strip()
        if block is None:
            if mark.startswith(_FENCE) and "`" not in mark[len(_FENCE) :]:
                block = []
        elif mark == _FENCE:
            blocks.append("\n".join(block))
            block = None
        else:
            block.append(line)
    return blocks[::-1]


def last_object(text: str, key: str) -> dict[str, Any] | None:
    """The last JSON object in a text that has a key; None where there is none."""
    tail = text[-_SEARCHED:]
    tries = _TRIES
    named = tail.rfind(f'"{key}"')
    while named >= 0 and tries > 0:
        # The object begins before its key, with others of its members between them at most.
        at = tail.rfind("{", 0, named)
        while at >= 0 and tries > 0:
            tries -= 1
            found = _value_at(tail, at)
            if isinstance(found, dict) and key in found:
                return found
            at = tail.rfind("{", 0, at)
        named = tail.rfind(f'"{key}"', 0, named)
    return None


def last_count(text: str) -> int | None:
    """The number that the last line consists of; None where it is not one."""
    match = _COUNT.fullmatch(text[-_SEARCHED:].rstrip().rpartition("\n")[2])
    return int(match.group(1)) if match else None


def _value_at(text: str, at: int) -> Any:
    try:
        return _DECODER.raw_decode(text, at)[0]
    except (ValueError, RecursionError):
        return None


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_number)
