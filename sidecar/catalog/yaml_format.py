"""YAML as definitions may use it: safe, bounded, no key twice, and every value knows its line."""

from __future__ import annotations

import math
import os
import re
import stat
from typing import Any, NamedTuple, TypeAlias

import yaml

from sidecar.errors import DefinitionError, Problem

_Twice: TypeAlias = tuple[yaml.Node, yaml.Node, int]  # a key, the value that it replaces, the line of the first
Location: TypeAlias = tuple[int | str, ...]  # of an entry in a file: its keys and indices from the top
Place: TypeAlias = tuple[int, int]  # line and column, both from 1

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 100
_MOST_READ_AGAIN = 64 * 1024  # characters: half a second for the pure scanner
# What a file may have, and what it may come to when its aliases are written out: a few lines of aliases to aliases
# stand for billions.
MAX_VALUES = 100_000
FAST = bool(getattr(yaml, "__with_libyaml__", False))
_STARTS = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_ENDS = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
_MERGE = "tag:yaml.org,2002:merge"
# Where libyaml reads a text otherwise than the pure scanner, or reads what that refuses.
_QUIRKS = re.compile(r"[|>][-+0-9]*#")
# What PyYAML's constructor raises for `!!bool x`, `!!int ''`, `!!timestamp x`, or a number of thousands of digits.
CONSTRUCTOR_ERRORS = (ValueError, ArithmeticError, LookupError, AttributeError, TypeError)


class Document(NamedTuple):  # no dataclass: lists import this module, and dataclasses take long to import
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

    def place(self, location: Location) -> Place:
        """Line and column of an entry, that is of its key or its list item; of the nearest thing around it, where the
        file does not have it."""
        return self._find(location)[0]

    def value_place(self, location: Location) -> Place:
        """Line and column at which the value itself begins: behind its key, behind an opening quote."""
        place, node = self._find(location)
        if node is None:
            return place
        line, column = _start(node)
        if not isinstance(node, yaml.ScalarNode) or not node.style:
            return line, column
        return (line, column + 1) if node.style in "'\"" else (line + 1, _indent(node, self.text) + 1)

    def inside(self, location: Location, line: int, column: int) -> Place:
        """Where a line and column inside a text (both from 1) stand in the file.

        Exact in a block (`|`), in a plain text and in quotes on one line; elsewhere the place where the text begins.
        """
        node = self._find(location)[1]
        first_line, first_column = self.value_place(location)
        if not isinstance(node, yaml.ScalarNode):
            return first_line, first_column
        if node.style == "|":
            return first_line + line - 1, first_column + column - 1
        one_line = node.start_mark.line == node.end_mark.line
        width = node.end_mark.column - node.start_mark.column - (2 if node.style else 0)
        # A width other than the value's own: there are escapes, whose places only the scanner knew.
        if node.style != ">" and one_line and width == len(node.value):
            return first_line, first_column + column - 1
        return first_line, first_column

    def _find(self, location: Location) -> tuple[Place, yaml.Node | None]:
        """The place of an entry, or of the nearest thing around it, and its value, None where the file has none."""
        node, place = self.root, (1, 1)
        for part in location:
            found = _child(node, part)
            if found is None:
                return place, None
            place, node = _start(found[0]), found[1]
        return place, node


def load(path: str) -> Document:
    """Read and parse a file; DefinitionError has what is wrong with it."""
    return parse(text_of(path), path)


def parse(text: str, path: str) -> Document:
    """Parse a text; the path is for messages. Keys that are there twice are `problems` of the document, so that the
    rest can be checked, too."""
    try:
        if is_fast(text):
            return _document(FastLoader(text), text, path)
    except (yaml.YAMLError, RecursionError, *CONSTRUCTOR_ERRORS) as error:
        # The other scanner has the last word, so that a file has the same errors on every machine; but it takes ten
        # seconds for a mebibyte.
        is_long = len(text) > _MOST_READ_AGAIN
        if isinstance(error, TooMany) or (is_long and isinstance(error, yaml.MarkedYAMLError)):
            raise _at_mark(error, path) from None
    return parse_pure(text, path)


def parse_pure(text: str, path: str) -> Document:
    """Parse without libyaml: what `parse` does where there is none, and whenever there is an error."""
    text = text.removeprefix("\ufeff")  # editors on Windows put a byte-order mark there
    try:
        return _document(PureLoader(text), text, path)
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
    except CONSTRUCTOR_ERRORS as error:
        message = f"a value does not fit its tag: {type(error).__name__}: {error}"
        raise DefinitionError([Problem.at(path, (1, 1), " ".join(message.split()))]) from None


def load_nodes(path: str) -> tuple[Any, yaml.Node | None]:
    """The checked nodes of a file, and the loader that makes their values: much faster than `load`, which has to decide
    where this raises yaml.YAMLError or DefinitionError."""
    text = text_of(path)
    if not is_fast(text):
        raise ScannersDiffer
    loader = FastLoader(text)
    composer = _Composer(loader)
    root = composer.document()
    if composer.twice:
        raise ScannersDiffer
    return loader, root


def _document(loader: Any, text: str, path: str) -> Document:
    composer = _Composer(loader)
    root = composer.document()
    value = None if root is None else loader.construct_document(root)
    problems = [
        Problem.at(path, _start(key), f"{key.value!r} is there twice, first on line {line}")
        for key, _, line in composer.twice
    ]
    lines = text.split("\n")
    shadowed = [lines[node.start_mark.line : node.end_mark.line + 1] for _, node, _ in composer.twice]
    return Document(path, value, root, text, tuple(problems), "\n".join(line for part in shadowed for line in part))


def text_of(path: str) -> str:
    """The text of a file that may be a definition: regular, UTF-8, at most a mebibyte."""
    try:
        # O_NONBLOCK: a FIFO in the directory must not block a list.
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


def _duplicates(node: yaml.MappingNode) -> list[_Twice]:
    """The keys that were there before."""
    if len({key.value for key, _ in node.value if type(key) is yaml.ScalarNode}) == len(node.value):
        return []
    first_lines: dict[tuple[str, str], int] = {}
    last: dict[tuple[str, str], yaml.Node] = {}
    found: list[_Twice] = []
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            identity = (key.tag, key.value)
            if identity in first_lines:
                found.append((key, last[identity], first_lines[identity]))
            first_lines.setdefault(identity, _start(key)[0])
            last[identity] = value
    return found


def _at_mark(error: yaml.MarkedYAMLError, path: str) -> DefinitionError:
    mark = error.problem_mark or error.context_mark
    place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    reason = " ".join(", ".join(filter(None, (error.context, error.problem))).split()) or "not YAML"
    if error.problem and "'\\t'" in error.problem:
        reason = "a tab cannot indent in YAML: write spaces"
    return DefinitionError([Problem.at(path, place, reason)])


class PureLoader(yaml.SafeLoader):
    """Safe, and without the two surprises of YAML 1.1: `1:30` as ninety, and dates, which are no JSON."""


_REPLACED = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
PureLoader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0] not in _REPLACED]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PureLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
PureLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan)$", re.IGNORECASE
    ),
    list("-+0123456789."),
)

_NOT_TEXT = frozenset(PureLoader.yaml_implicit_resolvers)  # how values of other types than text begin

if FAST:

    class FastLoader(yaml.CSafeLoader):
        """The same language, scanned by libyaml, which is about eight times as fast."""

    FastLoader.yaml_implicit_resolvers = PureLoader.yaml_implicit_resolvers


def is_fast(text: str) -> bool:
    """Whether libyaml is there, and sees in the text what the pure scanner sees."""
    return FAST and "\t" not in text and "\ufeff" not in text and not _QUIRKS.search(text)


class TooMany(yaml.MarkedYAMLError):
    """The file has more values than a definition has any use for."""


class ScannersDiffer(yaml.YAMLError):
    """The two scanners differ here, and the pure one is to be asked."""


class _Composer:
    """Makes nodes of the events of a loader. What has too many values, or is too deep, is refused while it comes.

    Without recursion: libyaml's own composer recurses in C, where half a megabyte of `- - - -` ends the process.
    """

    def __init__(self, loader: Any) -> None:
        self.twice: list[_Twice] = []  # the keys that are there twice
        self._loader = loader
        self._anchors: dict[str, yaml.Node] = {}
        self._open: list[yaml.CollectionNode] = []
        self._keys: list[yaml.Node | None] = []  # for each open mapping: the key that waits for its value
        self._values = 0  # so far, those that aliases stand for included
        self._before: dict[int, int] = {}  # by the identity of an open node: how many values came before it
        self._sizes: dict[int, int] = {}  # by the identity of a complete collection

    def document(self) -> yaml.Node | None:
        """The one document of the stream; None where the stream is empty."""
        loader = self._loader
        loader.get_event()  # the stream's start
        if loader.check_event(yaml.StreamEndEvent):
            return None
        loader.get_event()  # the document's start
        root = self._root()
        loader.get_event()  # the document's end
        if not loader.check_event(yaml.StreamEndEvent):
            mark = loader.get_event().start_mark
            raise yaml.composer.ComposerError("expected a single document", None, "but found another document", mark)
        self.twice.sort(key=lambda one: _start(one[0]))
        return root

    def _root(self) -> yaml.Node:
        while True:
            event = self._loader.get_event()
            node = self._ended(event) if type(event) in _ENDS else self._begun(event)
            if type(event) in _STARTS:
                continue
            if not self._open:
                return node
            parent = self._open[-1]
            if type(parent) is yaml.SequenceNode:
                parent.value.append(node)
            elif self._keys[-1] is None:
                self._keys[-1] = node
            else:
                parent.value.append((self._keys[-1], node))
                self._keys[-1] = None

    def _ended(self, event: Any) -> yaml.Node:
        self._keys.pop()
        node = self._open.pop()
        node.end_mark = event.end_mark
        self._sizes[id(node)] = self._values - self._before.pop(id(node))
        if isinstance(node, yaml.MappingNode):
            self.twice += _duplicates(node)
        return node

    def _begun(self, event: Any) -> yaml.Node:
        node = self._node(event)
        if id(node) in self._before:
            raise yaml.composer.ComposerError(None, None, "an alias that contains itself", node.start_mark)
        self._values += self._sizes.get(id(node), 1)
        if self._values > MAX_VALUES:
            hint = " when its aliases are written out" if self._anchors else ""
            raise TooMany(None, None, f"more than {MAX_VALUES} values{hint}", event.start_mark)
        if type(event) in _STARTS:
            if len(self._open) >= MAX_DEPTH:
                message = f"nested more than {MAX_DEPTH} deep"
                raise yaml.composer.ComposerError(None, None, message, event.start_mark)
            assert isinstance(node, yaml.CollectionNode)
            self._before[id(node)] = self._values - 1
            self._open.append(node)
            self._keys.append(None)
        return node

    def _node(self, event: Any) -> yaml.Node:
        """The node that an event begins. It is known by its anchor at once, so that one that contains itself is
        seen."""
        start, end = event.start_mark, event.end_mark
        if type(event) is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                raise yaml.composer.ComposerError(None, None, f"found undefined alias {event.anchor!r}", start)
            return self._anchors[event.anchor]
        node: yaml.Node
        if type(event) is yaml.ScalarEvent:
            node = yaml.ScalarNode(self._tag(event, yaml.ScalarNode, event.value), event.value, start, end, event.style)
            # `[why?]` is a text to libyaml and an error to the pure scanner.
            if not event.style and "?" in event.value and self._open and self._open[-1].flow_style:
                self._refuse_unless_pure()
        else:
            kind = yaml.SequenceNode if type(event) is yaml.SequenceStartEvent else yaml.MappingNode
            node = kind(self._tag(event, kind, None), [], start, end, flow_style=event.flow_style)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _tag(self, event: Any, kind: type[yaml.Node], value: str | None) -> str:
        if event.tag is not None:
            self._refuse_unless_pure()
        # The resolver has the same answer for a text in quotes, or one that begins as no other type, but is slower.
        if event.tag is None and value is not None and not (event.implicit[0] and value[:1] in _NOT_TEXT):
            return "tag:yaml.org,2002:str"
        return str(self._loader.resolve(kind, value, event.implicit) if event.tag in (None, "!") else event.tag)

    def _refuse_unless_pure(self) -> None:
        if not isinstance(self._loader, PureLoader):
            raise ScannersDiffer


def _child(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """Where the entry begins, and its value. The constructor has put what `<<` merges in front: the last one holds."""
    if isinstance(node, yaml.MappingNode):
        for key, child in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part) and key.tag != _MERGE:
                return key, child
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _start(node: yaml.Node) -> Place:
    """Where a node begins."""
    return node.start_mark.line + 1, node.start_mark.column + 1


def _indent(node: yaml.ScalarNode, text: str) -> int:
    """How far a block is indented: what the first line with anything on it has more in the file than in the value."""
    in_value = next((line for line in node.value.split("\n") if line.strip(" ")), "")
    in_file = next((line for line in text.split("\n")[node.start_mark.line + 1 :] if line.strip(" \r")), "")
    return max(_spaces(in_file) - _spaces(in_value), 0)


def _spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def as_json(value: Any, problems: list[tuple[Location, str]], location: Location = ()) -> Any:
    """The value as JSON, which state is journalled as: with null in place of what JSON does not have, and without keys
    that are not text. Each of these is added to the problems."""
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for key, child in value.items():
            if isinstance(key, str) and not _scalar_problem(key):
                kept[key] = as_json(child, problems, (*location, key))
            else:  # `yes:`, `on:`, `1:`: YAML reads them as something else
                problems.append(((*location, str(key)), f"the key {key!r} is not text; put it in quotes"))
        return kept
    if isinstance(value, list):
        return [as_json(item, problems, (*location, index)) for index, item in enumerate(value)]
    message = _scalar_problem(value)
    if message:
        problems.append((location, message))
        return None
    return value


def _scalar_problem(value: object) -> str | None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return "half of a surrogate pair is no character"
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is not a number that JSON has"
    if value is None or isinstance(value, int):
        return None
    return f"a value of YAML's type {type(value).__name__} cannot be used here"
