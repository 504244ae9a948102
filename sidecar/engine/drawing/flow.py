"""A picture as nodes and edges, for programs that lay them out by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.engine.picture import Box, Field, Picture

Shape = Literal["start", "step", "choice", "loop", "parallel", "include", "end", "jump", "raw", "computed"]
# Where the flow comes from: a node, and the word on the way.
Loose = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """Something with a name of its own (letters and digits) and lines of text."""

    name: str
    lines: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from node to node. `dotted`: not the flow itself, but something that is started."""

    source: str
    target: str
    word: str = ""
    dotted: bool = False


@dataclass(slots=True)
class Group:
    """Nodes that belong together, with a title."""

    name: str
    title: str
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Flow:
    """Nodes in groups, and edges between any of them."""

    groups: list[Group] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)


def flow(picture: Picture) -> Flow:
    """The sections of a picture, each a group from its start to its end, and the data as one more."""
    return _Builder().build(picture)


@dataclass(slots=True)
class _Loop:
    head: str
    breaks: list[Loose]


class _Builder:
    def __init__(self) -> None:
        self.flow = Flow()
        self.count = 0
        self.tasks: dict[str, str] = {}  # a task's first node
        self.starters: list[tuple[str, str]] = []  # a step's node, and the task that it starts

    def build(self, picture: Picture) -> Flow:
        for section in picture.sections:
            self._group(section.title)
            begin = self._node(("start",), "start")
            if section.task is not None:
                self.tasks[section.task] = begin
            ends = self._sequence(section.boxes, [(begin, "")], None)
            if ends:
                self._join(ends, self._node(("end",), "end"))
        for node, task in self.starters:
            if task in self.tasks:
                self.flow.edges.append(Edge(node, self.tasks[task], "for each item", dotted=True))
        if picture.fields:
            self._data(picture.fields)
        return self.flow

    def _group(self, title: str) -> None:
        self.flow.groups.append(Group(f"g{len(self.flow.groups)}", title))

    def _node(self, lines: tuple[str, ...], shape: Shape) -> str:
        name = f"n{self.count}"
        self.count += 1
        self.flow.groups[-1].nodes.append(Node(name, lines, shape))
        return name

    def _join(self, sources: Sequence[Loose], target: str) -> None:
        for source, word in sources:
            self.flow.edges.append(Edge(source, target, word))

    def _sequence(self, boxes: Sequence[Box], before: list[Loose], loop: _Loop | None) -> list[Loose]:
        """Draw steps after each other; what comes back is where the flow leaves them."""
        for box in boxes:
            node = self._node(_lines(box), _shape(box))
            self._join(before, node)
            before = self._after(box, node, loop)
        return before

    def _after(self, box: Box, node: str, loop: _Loop | None) -> list[Loose]:
        match box.kind:
            case "choice":
                words = dict(box.branches)
                ends = [self._sequence(words.get(word, ()), [(node, word)], loop) for word in ("yes", "no")]
                return ends[0] + ends[1]
            case "loop":
                inner = _Loop(node, [])
                for word, boxes in box.branches:
                    self._join(self._sequence(boxes, [(node, word)], inner), node)
                return [(node, "done"), *inner.breaks]
            case "end":
                return []
            case "break" | "continue" if loop is not None:
                if box.kind == "break":
                    loop.breaks.append((node, ""))
                else:
                    self._join([(node, "")], loop.head)
                return []
            case "parallel" if box.task is not None:
                self.starters.append((node, box.task))
        return [(node, "")]

    def _data(self, fields: Sequence[Field]) -> None:
        self._group("data")
        known = {one.name: self._node((one.name,), "computed") for one in fields}
        for one in fields:
            for source in one.sources:
                if source not in known:
                    known[source] = self._node((source,), "raw")
                self.flow.edges.append(Edge(known[source], known[one.name]))


def _lines(box: Box) -> tuple[str, ...]:
    parts = [f"{box.title} ({box.note})" if box.note else box.title, box.detail]
    if box.writes:
        parts.append(f"→ {', '.join(box.writes)}")
    return tuple(part for part in parts if part)


def _shape(box: Box) -> Shape:
    return "jump" if box.kind in ("break", "continue") else box.kind  # type: ignore[return-value]
