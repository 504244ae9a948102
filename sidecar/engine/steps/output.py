"""What a step makes of output: text to a value in its `output_format`, JSON in the answer of an agent, and the lines of
a process while it runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from sidecar.agents.output import OutputLines
from sidecar.engine.steps.context import Context
from sidecar.errors import StepFailed
from sidecar.model.events import AGENT_OUTPUT
from sidecar.model.steps import OutputFormat

# A colon separates key and value only before a blank: the one in `http://` does not.
_PAIR = re.compile(r"([^=:\s](?:[^=:]|:(?!\s|$))*)(?:=|:(?=\s|$))(.*)")
_QUOTED_CHARACTERS = 60


def formatted(text: str, output_format: OutputFormat) -> Any:
    """The value of an output; StepFailed where it does not fit the format.

    text: as it is, without the line break at its end (one, where there are several).
    lines: a list, line breaks removed; the text after the last one is a line only if it is not empty.
    json: exactly one JSON value, blanks around it allowed.
    key_value: an object of texts from lines `key=value` or `key: value`. Blanks around key and value, and one pair of
    quotes around the whole value, are removed; of a key that comes twice the last counts. Empty lines, comments
    (`# …`) and lines that are no pair are ignored, since tools print headings; but an output that has lines and no
    pair at all is an error.
    """
    return _FORMATS[output_format](text)


def nothing(output_format: OutputFormat) -> Any:
    """The value of an empty output; null for JSON, which has none."""
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
        raise _failed("is not JSON: it is empty")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + _QUOTED_CHARACTERS].partition("\n")[0]
        place = f"line {error.lineno}, column {error.colno}"
        raise _failed(f"is not JSON: {error.msg} at {place}" + (f": {near!r}" if near else "")) from None
    except RecursionError:
        raise _failed("is not usable JSON: it is nested too deeply") from None
    except ValueError as error:  # a constant of ours, or a number with more digits than Python reads
        raise _failed(f"is not usable JSON: {error}") from None


def _key_value(text: str) -> dict[str, str]:
    lines = [line for line in map(str.strip, _lines(text)) if line and not line.startswith("#")]
    pairs = [pair for pair in map(_PAIR.fullmatch, lines) if pair is not None]
    if lines and not pairs:
        raise _failed(f"has no line `key=value` or `key: value`; it begins with {lines[0][:_QUOTED_CHARACTERS]!r}")
    return {pair[1].rstrip(): _unquoted(pair[2].strip()) for pair in pairs}


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" and value[0] not in value[1:-1]
    return value[1:-1] if quoted else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it has {name}, which JSON does not know")


def _failed(what: str) -> StepFailed:
    return StepFailed(f"the output {what}", kind="output")


_FORMATS: dict[str, Callable[[str], Any]] = {"text": _text, "lines": _lines, "json": _json, "key_value": _key_value}


# --- the answer of an agent


# Only the end of an answer is searched: the JSON that was asked for is there, and hostile text costs no more than this.
_SEARCHED_CHARACTERS = 64 * 1024
_MOST_TRIES = 256
_FENCE = "```"
_LONE_NUMBER = re.compile(r"[*_`\s]*(\d{1,9})[*_`.\s]*", re.ASCII)
COUNT = "applied_count"


def answer_value(text: str, output_format: OutputFormat) -> Any:
    """The value of an agent's answer, as `formatted`; for JSON also that of the last fenced block which is JSON.

    Models wrap JSON in a fence even when asked not to.
    """
    try:
        return formatted(text, output_format)
    except StepFailed:
        for block in fenced(text) if output_format == "json" else ():
            try:
                return formatted(block, "json")
            except StepFailed:
                continue
        raise


def applied_hints(answer: object) -> dict[str, Any] | None:
    """The result of `apply_hints`: an object with the whole number `applied_count`; None where the answer has none.

    An answer is that object, or a number, or a text that ends with one of them. 3.0 and "3" are taken for 3.
    """
    found = last_object(answer, COUNT) if isinstance(answer, str) else answer
    found = found if isinstance(found, dict) else {}
    count = found.get(COUNT, answer)
    if isinstance(count, str):
        count = last_count(count)
    elif isinstance(count, float) and count.is_integer():
        count = int(count)
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return None
    return {**found, COUNT: count}


def fenced(text: str) -> list[str]:
    """The contents of the fenced blocks of a text, the last one first. A block without an end is none."""
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
    tail = text[-_SEARCHED_CHARACTERS:]
    tries = _MOST_TRIES
    named = tail.rfind(f'"{key}"')
    while named >= 0 and tries > 0:
        # The object begins before its key, possibly with other members between them.
        at = tail.rfind("{", 0, named)
        while at >= 0 and tries > 0:
            tries -= 1
            try:
                found = _DECODER.raw_decode(tail, at)[0]
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict) and key in found:
                return found
            at = tail.rfind("{", 0, at)
        named = tail.rfind(f'"{key}"', 0, named)
    return None


def last_count(text: str) -> int | None:
    """The number that the last line consists of; None where it is not one."""
    match = _LONE_NUMBER.fullmatch(text[-_SEARCHED_CHARACTERS:].rstrip().rpartition("\n")[2])
    return int(match.group(1)) if match else None


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


# --- a process while it runs


_TAIL_CHARACTERS = 4000
_LAST_LINE_CHARACTERS = 500


class ProcessOutput:
    """The output of one process: emitted as it comes, cut to what listeners need, and the end of each stream kept."""

    def __init__(self, context: Context, *, line_characters: int, most_lines: int | None = None) -> None:
        self.tails = {"stdout": "", "stderr": ""}
        self._emit = context.emit
        self._line_characters = line_characters
        self._first = -most_lines if most_lines is not None else None

    def add(self, agent_id: str | None, output: OutputLines, **facts: object) -> None:
        """More lines, emitted together with `facts`."""
        end = ("\n".join(output.lines) + "\n")[-_TAIL_CHARACTERS:]
        self.tails[output.stream] = (self.tails[output.stream] + end)[-_TAIL_CHARACTERS:]
        lines = [line[: self._line_characters] for line in output.lines[self._first :]]
        dropped = output.dropped + len(output.lines) - len(lines)
        data = {"agent_id": agent_id, "stream": output.stream, "lines": lines, **facts}
        self._emit(AGENT_OUTPUT, {**data, "dropped": dropped} if dropped else data)

    @property
    def last_error_line(self) -> str:
        """The last line on stderr."""
        return self.tails["stderr"].rstrip().rpartition("\n")[2].strip()[:_LAST_LINE_CHARACTERS]
