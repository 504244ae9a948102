"""Where in a file the parts of a YAML document stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import yaml

Location: TypeAlias = Sequence[int | str]
Place: TypeAlias = tuple[int, int]  # line and column, both from 1

_MERGE = "tag:yaml.org,2002:merge"


def entry(root: yaml.Node | None, location: Location) -> Place:
    """Where an entry begins: its key, or its list item; the nearest thing around it, where there is no such entry."""
    node, place = root, (1, 1)
    for part in location:
        found = _child(node, part)
        if found is None:
            break
        place, node = start(found[0]), found[1]
    return place


def value(root: yaml.Node | None, text: str, location: Location) -> Place:
    """Where the value itself begins; the place of the nearest entry around it, where there is none."""
    node = _at(root, location)
    if node is None:
        return entry(root, location)
    line, column = start(node)
    if not isinstance(node, yaml.ScalarNode) or not node.style:
        return line, column
    return (line, column + 1) if node.style in "'\"" else (line + 1, _indent(node, text) + 1)


def inside(root: yaml.Node | None, text: str, location: Location, line: int, column: int) -> Place:
    """Where a line and column of a text's value stand in the file, as exactly as its style lets us know."""
    node = _at(root, location)
    first_line, first_column = value(root, text, location)
    if not isinstance(node, yaml.ScalarNode):
        return first_line, first_column
    if node.style == "|":
        return first_line + line - 1, first_column + column - 1
    one_line = node.start_mark.line == node.end_mark.line
    width = node.end_mark.column - node.start_mark.column - (2 if node.style else 0)
    # A width other than the value's own: there are escapes, and what stands where only the scanner knew.
    if node.style != ">" and one_line and width == len(node.value):
        return first_line, first_column + column - 1
    return first_line, first_column


def _at(root: yaml.Node | None, location: Location) -> yaml.Node | None:
    node = root
    for part in location:
        found = _child(node, part)
        if found is None:
            return None
        node = found[1]
    return node


def _child(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """Where the entry begins, and its value. The constructor has put what `<<` merges in front: the last one holds."""
    if isinstance(node, yaml.MappingNode):
        for key, child in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part) and key.tag != _MERGE:
                return key, child
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        return node.value[part], node.value[part]
    return None


def start(node: yaml.Node) -> Place:
    """Where a node begins."""
    return node.start_mark.line + 1, node.start_mark.column + 1


def _indent(node: yaml.ScalarNode, text: str) -> int:
    """How far a block is indented: what the first line with anything on it has more in the file than in the value."""
    in_value = next((line for line in node.value.split("\n") if line.strip(" ")), "")
    in_file = next((line for line in text.split("\n")[node.start_mark.line + 1 :] if line.strip(" \r")), "")
    return max(_spaces(in_file) - _spaces(in_value), 0)


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
