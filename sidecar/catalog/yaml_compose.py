"""Nodes from YAML events, without recursion: how deep a file may nest is our limit, not the stack's.

libyaml's own composer recurses in C, where Python's limit does not hold: half a megabyte of `- - - -` ends the process.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH = 100
# What a file may have, and what it may come to when its aliases are written out: a few lines of aliases to aliases
# stand for billions.
MAX_VALUES = 100_000
FAST = bool(getattr(yaml, "__with_libyaml__", False))
_STARTS = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_VALUES = (yaml.ScalarEvent, yaml.AliasEvent, *_STARTS)
_ENDS = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
# Where libyaml reads a text otherwise than the pure scanner, or reads what that refuses.
_QUIRKS = re.compile(r"[\t\ufeff]|[|>][-+0-9]*#")


class PureLoader(yaml.SafeLoader):
    """Safe, and without the two surprises of YAML 1.1: `1:30` as ninety, and dates, which are no JSON."""


def _without_surprises(resolvers: Mapping[str, list[tuple[str, Any]]]) -> dict[str, list[tuple[str, Any]]]:
    dropped = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
    return {first: [entry for entry in entries if entry[0] not in dropped] for first, entries in resolvers.items()}


PureLoader.yaml_implicit_resolvers = _without_surprises(yaml.SafeLoader.yaml_implicit_resolvers)
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

if FAST:

    class FastLoader(yaml.CSafeLoader):
        """The same language, scanned by libyaml, which is about eight times as fast."""

    FastLoader.yaml_implicit_resolvers = PureLoader.yaml_implicit_resolvers


def is_fast(text: str) -> bool:
    """Whether libyaml is there, and sees in the text what the pure scanner sees."""
    return FAST and not _QUIRKS.search(text)


class TooDeep(yaml.MarkedYAMLError):
    """The file nests deeper than a definition has any use for."""


class TooMany(yaml.MarkedYAMLError):
    """The file has more values than a definition has any use for."""


class Undecided(yaml.YAMLError):
    """The two scanners differ here, and the pure one is to be asked."""


def compose(loader: Any) -> yaml.Node | None:
    """The one document of a stream as nodes; None where the stream is empty."""
    loader.get_event()  # the stream's start
    if loader.check_event(yaml.StreamEndEvent):
        return None
    loader.get_event()  # the document's start
    root = _node(loader)
    loader.get_event()  # the document's end
    if not loader.check_event(yaml.StreamEndEvent):
        mark = loader.get_event().start_mark
        raise yaml.composer.ComposerError("expected a single document", None, "but found another document", mark)
    return root


def count(text: str) -> None:
    """TooMany, for a text that has too many values. libyaml is asked, whatever it may read otherwise: the pure scanner
    takes ten seconds for as many."""
    if not FAST or len(text) < 2 * MAX_VALUES:  # a value, and what parts it from the next
        return
    loader: Any = FastLoader(text)
    values = depth = 0
    try:
        while depth <= MAX_DEPTH and loader.check_event():  # what is too deep is refused for that
            event = loader.get_event()
            values += type(event) in _VALUES
            depth += (type(event) in _STARTS) - (type(event) in _ENDS)
            if values > MAX_VALUES:
                raise too_many(event)
    except yaml.YAMLError as error:
        if isinstance(error, TooMany):
            raise


def too_many(event: Any) -> TooMany:
    """The error for the event that is one too many."""
    return TooMany(None, None, f"more than {MAX_VALUES} values", event.start_mark)


def _node(loader: Any) -> yaml.Node:
    anchors: dict[str, yaml.Node] = {}
    open_nodes: list[yaml.CollectionNode] = []
    keys: list[yaml.Node | None] = []  # for each open mapping: the key that waits for its value
    values = 0
    while True:
        event = loader.get_event()
        if type(event) in _ENDS:
            keys.pop()
            node: yaml.Node = open_nodes.pop()
            node.end_mark = event.end_mark
        else:
            values += 1
            if values > MAX_VALUES:  # here, and not when all of them are in memory
                raise too_many(event)
            node = _opened(loader, event, anchors)
            if type(node) is yaml.ScalarNode and not node.style and "?" in node.value:
                _ask_the_pure_one(loader, open_nodes)
            if type(event) in _STARTS:
                if len(open_nodes) >= MAX_DEPTH:
                    raise TooDeep(None, None, f"nested more than {MAX_DEPTH} deep", event.start_mark)
                assert isinstance(node, yaml.CollectionNode)
                open_nodes.append(node)
                keys.append(None)
                continue
        if not open_nodes:
            return node
        parent = open_nodes[-1]
        if type(parent) is yaml.SequenceNode:
            parent.value.append(node)
        elif keys[-1] is None:
            keys[-1] = node
        else:
            parent.value.append((keys[-1], node))
            keys[-1] = None


def _ask_the_pure_one(loader: Any, open_nodes: list[yaml.CollectionNode]) -> None:
    """`[why?]` is a text to libyaml and an error to the pure scanner."""
    if open_nodes and open_nodes[-1].flow_style and not _is_pure(loader):
        raise Undecided


def _opened(loader: Any, event: Any, anchors: dict[str, yaml.Node]) -> yaml.Node:
    """The node that an event begins. It is known by its anchor at once, so that one that contains itself is seen."""
    start, end = event.start_mark, event.end_mark
    if type(event) is yaml.AliasEvent:
        if event.anchor not in anchors:
            raise yaml.composer.ComposerError(None, None, f"found undefined alias {event.anchor!r}", start)
        return anchors[event.anchor]
    node: yaml.Node
    if type(event) is yaml.ScalarEvent:
        tag = _tag(loader, event, yaml.ScalarNode, event.value)
        node = yaml.ScalarNode(tag, event.value, start, end, style=event.style)
    else:
        kind = yaml.SequenceNode if type(event) is yaml.SequenceStartEvent else yaml.MappingNode
        tag = _tag(loader, event, kind, None)
        node = kind(tag, [], start, end, flow_style=event.flow_style)
    if event.anchor is not None:
        anchors[event.anchor] = node
    return node


def _tag(loader: Any, event: Any, kind: type[yaml.Node], value: str | None) -> str:
    if event.tag is not None and not _is_pure(loader):
        raise Undecided
    return str(loader.resolve(kind, value, event.implicit) if event.tag in (None, "!") else event.tag)


def _is_pure(loader: object) -> bool:
    return isinstance(loader, PureLoader)
