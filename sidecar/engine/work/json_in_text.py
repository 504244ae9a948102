"""JSON in the answer of an agent that was asked for it, and that wraps it in prose or in a fence all the same."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

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


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
