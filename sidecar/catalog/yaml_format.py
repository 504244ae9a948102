"""YAML as definitions may use it: safe, bounded, no key twice, and every value knows its line."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from sidecar.catalog import positions, yaml_compose
from sidecar.catalog.yaml_compose import MAX_VALUES
from sidecar.errors import DefinitionError, Problem

if TYPE_CHECKING:
    from sidecar.catalog.positions import Location, Place

    _Twice = tuple[yaml.Node, yaml.Node, int]  # a key, the value that it takes the place of, the line of the first

MAX_BYTES = 1024 * 1024
# What PyYAML's constructor raises for `!!bool x`, `!!int ''`, `!!timestamp x`, or a number of thousands of digits.
_MISFITS = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError)


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its value, and where in the file each part of it stands."""

    path: str
    value: Any
    root: yaml.Node | None
    text: str = ""
    problems: tuple[Problem, ...] = ()  # keys that are there twice
    shadowed: str = ""  # what stands where those keys were first: the last one holds

    def problem(self, location: Location, message: str) -> Problem:
        """`file:line: message` for the value at a location such as `("limits", "timeout")`."""
        return Problem.at(self.path, self.place(location), message)

    def line(self, location: Location) -> int:
        """The line of a value; of the nearest thing around it, where the file does not have it."""
        return self.place(location)[0]

    def place(self, location: Location) -> Place:
        """Line and column of an entry, that is of its key or its list item; of the nearest thing around it, where the
        file does not have it."""
        return positions.entry(self.root, location)

    def value_place(self, location: Location) -> Place:
        """Line and column at which the value itself begins: behind its key, behind an opening quote."""
        return positions.value(self.root, self.text, location)

    def inside(self, location: Location, line: int, column: int) -> Place:
        """Where a line and column inside a text (both from 1) stand in the file.

        Exact in a block (`|`), in a plain text and in quotes on one line; elsewhere the place where the text begins.
        """
        return positions.inside(self.root, self.text, location, line, column)


def load(path: str) -> Document:
    """Read and parse a file; DefinitionError has what is wrong with it."""
    return parse(text_of(path), path)


def parse(text: str, path: str) -> Document:
    """Parse a text; the path is for messages."""
    return _without_problems(_parse(text, path))


def parse_pure(text: str, path: str) -> Document:
    """Parse without libyaml: what `parse` does where there is none, and whenever there is an error."""
    return _without_problems(_parse_pure(text, path))


def load_all(path: str) -> Document:
    """As `load`, but keys that are there twice are `problems` of the document: what else is wrong can be told, too."""
    return _parse(text_of(path), path)


def _without_problems(document: Document) -> Document:
    if document.problems:
        raise DefinitionError(document.problems)
    return document


def _parse(text: str, path: str) -> Document:
    try:
        yaml_compose.count(text)
    except yaml_compose.TooMany as error:
        raise _at_mark(error, path) from None
    if yaml_compose.is_fast(text):
        try:
            return _document(yaml_compose.FastLoader(text), text, path)
        except (yaml.YAMLError, RecursionError, *_MISFITS):
            pass  # the other scanner has the last word, so that a file has the same errors on every machine
    return _parse_pure(text, path)


def _parse_pure(text: str, path: str) -> Document:
    text = text.removeprefix("\ufeff")  # editors on Windows put a byte-order mark there
    try:
        return _document(yaml_compose.PureLoader(text), text, path)
    except yaml.MarkedYAMLError as error:
        raise _at_mark(error, path) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = (before.count("\n") + 1, error.position - before.rfind("\n"))
        message = f"YAML allows no character U+{error.character:04X}"
        raise DefinitionError([Problem.at(path, place, message)]) from None
    except yaml.YAMLError as error:
        raise DefinitionError([Problem.at(path, (1, 1), " ".join(str(error).split()))]) from None
    except RecursionError:
        raise DefinitionError([Problem.at(path, (1, 1), "nested too deeply")]) from None
    except _MISFITS as error:
        message = f"a value does not fit its tag: {type(error).__name__}: {error}"
        raise DefinitionError([Problem.at(path, (1, 1), " ".join(message.split()))]) from None


def _document(loader: Any, text: str, path: str) -> Document:
    root = yaml_compose.compose(loader)
    twice: list[_Twice] = []
    _check(root, path, twice)
    value = None if root is None else loader.construct_document(root)
    problems = [
        Problem.at(path, positions.start(key), f"{key.value!r} is there twice, first on line {line}")
        for key, _, line in twice
    ]
    lines = text.split("\n")
    shadowed = [lines[node.start_mark.line : node.end_mark.line + 1] for _, node, _ in twice]
    return Document(path, value, root, text, tuple(problems), "\n".join(line for part in shadowed for line in part))


def text_of(path: str) -> str:
    """The text of a file that may be a definition: regular, UTF-8, at most a mebibyte."""
    try:
        # O_NONBLOCK: a FIFO in the directory must not block whoever lists it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DefinitionError([Problem.at(path, (1, 1), "not a regular file")])
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DefinitionError([Problem.at(path, (1, 1), f"cannot be read: {error.strerror or error}")]) from None
    if len(content) > MAX_BYTES:
        raise DefinitionError([Problem.at(path, (1, 1), f"larger than {MAX_BYTES // 1024} KiB")])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DefinitionError([Problem.at(path, (line, 1), "not UTF-8")]) from None


def _check(root: yaml.Node | None, path: str, twice: list[_Twice]) -> None:
    """Refuse aliases that contain themselves, and aliases that multiply; note duplicate keys."""
    problems: list[Problem] = []
    if root is not None and _size(root, {}, problems, path, twice) > MAX_VALUES:
        message = f"more than {MAX_VALUES} values when its aliases are written out"
        problems.append(Problem.at(path, (1, 1), message))
    if problems:
        raise DefinitionError(problems)


def _size(
    node: yaml.Node,
    known: dict[int, int | None],
    problems: list[Problem],
    path: str,
    twice: list[_Twice],
) -> int:
    """How many values a node stands for. `known` makes this linear: an alias is the same node again."""
    if id(node) in known:
        size = known[id(node)]
        if size is None:  # still being counted: it contains itself
            problems.append(Problem.at(path, positions.start(node), "an alias that contains itself"))
        return size or 0
    known[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        twice.extend(_duplicates(node))
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size = 1 + sum(_size(child, known, problems, path, twice) for child in children)
    known[id(node)] = size
    return size


def _duplicates(node: yaml.MappingNode) -> list[_Twice]:
    """The keys that were there before."""
    first_lines: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], yaml.Node] = {}
    found: list[_Twice] = []
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            identity = (key.tag, key.value)
            if identity in first_lines:
                found.append((key, last[identity], first_lines[identity]))
            first_lines.setdefault(identity, positions.start(key)[0])
            last[identity] = value
    return found


def _at_mark(error: yaml.MarkedYAMLError, path: str) -> DefinitionError:
    mark = error.problem_mark or error.context_mark
    place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    return DefinitionError([Problem.at(path, place, _reason(error))])


def _reason(error: yaml.MarkedYAMLError) -> str:
    if error.problem and "'\\t'" in error.problem:
        return "a tab cannot indent in YAML: write spaces"
    parts = [part for part in (error.context, error.problem) if part]
    return " ".join(", ".join(parts).split()) or "not YAML"
