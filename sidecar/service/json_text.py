"""A value put into a JSON text, with or without comments in it, while every other character stays as it is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_PLAIN = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INDENT = "  "
_MARK = "\ufeff"


@dataclass(slots=True)
class Node:
    """A value with its place in the text; `members` are an object's, the last one of a name counts."""

    start: int
    end: int
    value: Any
    members: dict[str, tuple[int, Node]] = field(default_factory=dict)  # where the key begins, and the value


def read(text: str, *, comments: bool) -> Any:
    """What the text means; ValueError says on which line it means nothing. An empty one is an empty object."""
    return _root(text, comments=comments).value if text.strip(f"{_MARK} \t\r\n") else {}


def put(text: str, path: tuple[str, ...], value: Any, *, comments: bool) -> str:
    """The text with this value at this path. Objects are merged, anything else is replaced."""
    if not text.strip(f"{_MARK} \t\r\n"):
        return _dumped(_nested(path, value), _INDENT) + "\n"
    node = _root(text, comments=comments)
    for depth, key in enumerate(path):
        if not isinstance(node.value, dict):
            raise ValueError(
                f"line {_line(text, node.start)}: {'.'.join(path[:depth]) or 'the whole'} is not an object"
            )
        if key not in node.members:
            return _inserted(text, node, key, _nested(path[depth + 1 :], value))
        node = node.members[key][1]
    if isinstance(value, dict) and isinstance(node.value, dict):
        for key, part in value.items():
            text = put(text, (*path, key), part, comments=comments)
        return text
    if node.value == value:
        return text
    return text[: node.start] + _fitted(text, value, _indent_at(text, node.start)) + text[node.end :]


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _inserted(text: str, node: Node, key: str, value: Any) -> str:
    """With one more member at the end of an object, below whatever is said there in comments."""
    body = text[: node.end - 1].rstrip()
    outer = _indent_at(text, node.start)
    if "\n" not in text:
        member, close = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}", ""
        gap = " " if node.members else ""
    else:
        inner = _inner_indent(text, node)
        member = f"{json.dumps(key)}: {_fitted(text, value, inner)}"
        newline = _newline(text)
        gap, close = newline + inner, newline + outer
    if node.members:
        last = max(member.end for _, member in node.members.values())
        if "," not in _COMMENT.sub("", text[last : node.end]):
            body = body[:last] + "," + body[last:]
    return body + gap + member + close + text[node.end - 1 :]


def _inner_indent(text: str, node: Node) -> str:
    """As the first member has it, if it stands on a line of its own."""
    first = min((start for start, _ in node.members.values()), default=None)
    if first is not None and not text[text.rfind("\n", 0, first) + 1 : first].strip():
        return _indent_at(text, first)
    return _indent_at(text, node.start) + _unit(text)


def _unit(text: str) -> str:
    """What one level is indented by: what the first indented line has."""
    found = re.search(r'^([ \t]+)"', text, re.MULTILINE)
    return found.group(1) if found else _INDENT


def _indent_at(text: str, offset: int) -> str:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _fitted(text: str, value: Any, indent: str) -> str:
    if "\n" not in text:
        return json.dumps(value, ensure_ascii=False)
    return _dumped(value, _unit(text)).replace("\n", _newline(text) + indent)


def _dumped(value: Any, indent: str) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _root(text: str, *, comments: bool) -> Node:
    reader = _Reader(text, comments)
    try:
        node = reader.node(reader.skip(len(_MARK) if text.startswith(_MARK) else 0))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    end = reader.skip(node.end)
    if end < len(text):
        raise reader.error(end, "there is something behind the end")
    return node


class _Reader:
    """One pass over a text. Comments go with a comma behind the last member: who takes one takes the other, or says
    so itself."""

    def __init__(self, text: str, comments: bool) -> None:
        self._text = text
        self._comments = comments

    def error(self, offset: int, message: str) -> ValueError:
        return ValueError(f"line {_line(self._text, offset)}: {message}")

    def skip(self, offset: int) -> int:
        """Over blanks and comments."""
        while True:
            offset = _SPACE.match(self._text, offset).end()  # type: ignore[union-attr]
            comment = _COMMENT.match(self._text, offset)
            if comment is None:
                return offset
            if not self._comments:
                raise self.error(offset, "comments are not allowed in this file")
            offset = comment.end()

    def node(self, start: int) -> Node:
        match self._text[start : start + 1]:
            case "{":
                return self._object(start)
            case "[":
                return self._array(start)
            case '"':
                value, end = self._string(start)
                return Node(start, end, value)
        plain = _PLAIN.match(self._text, start)
        if plain is None:
            raise self.error(start, "a value is expected here" if start < len(self._text) else "it ends too early")
        return Node(start, plain.end(), json.loads(plain.group()))

    def _object(self, start: int) -> Node:
        node = Node(start, start, {})
        offset = self.skip(start + 1)
        while self._text[offset : offset + 1] != "}":
            if self._text[offset : offset + 1] != '"':
                raise self.error(offset, "a name in double quotes is expected here")
            key, end = self._string(offset)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self.error(colon, f"a colon is expected behind {json.dumps(key)}")
            member = self.node(self.skip(colon + 1))
            node.members[key] = (offset, member)
            node.value[key] = member.value
            offset = self._next(member.end, "}")
        node.end = offset + 1
        return node

    def _array(self, start: int) -> Node:
        node = Node(start, start, [])
        offset = self.skip(start + 1)
        while self._text[offset : offset + 1] != "]":
            item = self.node(offset)
            node.value.append(item.value)
            offset = self._next(item.end, "]")
        node.end = offset + 1
        return node

    def _next(self, end: int, closing: str) -> int:
        """The next member's place, or that of the closing bracket."""
        offset = self.skip(end)
        found = self._text[offset : offset + 1]
        if found == closing:
            return offset
        if found != ",":
            raise self.error(offset, f"a comma or {closing} is expected here")
        following = self.skip(offset + 1)
        if self._text[following : following + 1] == closing and not self._comments:
            raise self.error(offset, f"a comma before {closing}")
        return following

    def _string(self, start: int) -> tuple[str, int]:
        try:
            found: tuple[str, int] = scanstring(self._text, start + 1, True)
        except json.JSONDecodeError as error:
            raise self.error(start, f"this text is not right: {error.msg}") from None
        return found
