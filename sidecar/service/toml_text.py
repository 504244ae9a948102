"""Keys put into a table of a TOML text, while every other line stays as it is, comments too."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

_HEADER = re.compile(r"^[ \t]*\[(?P<name>[^\[\]]+)\][ \t]*(?:#.*)?\r?$")
_ANY_HEADER = re.compile(r"^[ \t]*\[")


def read(text: str) -> dict[str, Any]:
    """What the text means; ValueError says where it means nothing."""
    return tomllib.loads(text)


def put(text: str, path: tuple[str, ...], values: dict[str, str | list[str]]) -> str:
    """The text with these keys in the table at this path: in its lines where it has some, else at the end.

    Where a table is written in another way (inline, or by dotted keys) the result does not mean what was wanted. It is
    for the caller to read it again and see.
    """
    lines = text.split("\n")
    newline = "\r" if "\r\n" in text else ""
    where = _table(lines, path)
    if where is None:
        return _appended(text, path, values, newline)
    for key, value in values.items():
        _set(lines, where, key, value, newline)
    return "\n".join(lines)


def _appended(text: str, path: tuple[str, ...], values: dict[str, Any], newline: str) -> str:
    written = [f"[{'.'.join(path)}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    body = text.rstrip()
    start = body + newline + "\n" + newline + "\n" if body else ""
    return start + "".join(f"{line}{newline}\n" for line in written)


def _table(lines: list[str], path: tuple[str, ...]) -> int | None:
    """The line of the table's header."""
    for number, line in enumerate(lines):
        found = _HEADER.match(line)
        if found is not None and _keys(found["name"]) == path:
            return number
    return None


def _keys(name: str) -> tuple[str, ...]:
    """The path that a header names, however it is quoted."""
    keys: list[str] = []
    try:
        table = tomllib.loads(f"[{name}]")
    except tomllib.TOMLDecodeError:  # a line in the middle of something else
        return ()
    while table:
        key, table = next(iter(table.items()))
        keys.append(key)
    return tuple(keys)


def _set(lines: list[str], header: int, key: str, value: str | list[str], newline: str) -> None:
    """In place of the key's lines where there are some, else right below the header."""
    written = f"{key} = {_value(value)}"
    number = header + 1
    while number < len(lines) and not _ANY_HEADER.match(lines[number]):
        length, found = _statement(lines, number)
        if key in found:
            if found[key] != value:
                comment = _comment(lines[number], found) if length == 1 else ""
                lines[number : number + length] = [written + comment + newline]
            return
        number += length
    lines.insert(header + 1, written + newline)


def _statement(lines: list[str], start: int) -> tuple[int, dict[str, Any]]:
    """How many lines the statement has that begins here, and what it means."""
    for end in range(start + 1, len(lines) + 1):
        try:
            return end - start, tomllib.loads("\n".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
    return 1, {}


def _comment(line: str, meaning: dict[str, Any]) -> str:
    """What stands behind the value of a statement, from its hash sign on."""
    for found in re.finditer("#", line):
        try:
            if tomllib.loads(line[: found.start()]) == meaning:
                return " " + line[found.start() :].rstrip("\r")
        except tomllib.TOMLDecodeError:  # the sign is inside of a text
            continue
    return ""


def _value(value: str | list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_value(one) for one in value)}]"
    # JSON's text is TOML's, but for the surrogate pairs of its ASCII form and for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
