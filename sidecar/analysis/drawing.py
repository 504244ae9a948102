"""Draws a workflow, its steps and its data, as Mermaid, Graphviz, SVG or text."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from sidecar.model.steps import AgentStep, Exit, Fallible, ShellCommand, StateUpdate, UserMessage, Wait, Working
from sidecar.model.steps_control import Conditional, ForEach, IncludeWorkflow, ParallelForEach, While, branches
from sidecar.state.paths import PathError, parse, show
from sidecar.state.reactive import DependencyError, Graph
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sidecar.catalog.imports import Definition
    from sidecar.model.steps_control import Step


Kind = Literal["step", "choice", "loop", "parallel", "include", "end", "break", "continue"]
_KINDS: dict[str, Kind] = {
    "conditional": "choice",
    "while": "loop",
    "foreach": "loop",
    "parallel_foreach": "parallel",
    "include_workflow": "include",
    "exit": "end",
    "break": "break",
    "continue": "continue",
}


@dataclass(frozen=True, slots=True)
class Box:
    """One step. `branches` are the steps inside it, each list with the word for when it runs."""

    kind: Kind
    title: str  # its id, or its type where it has none
    note: str  # its type, where the title is its id
    detail: str  # what it decides by, repeats over, or does
    writes: tuple[str, ...]
    branches: tuple[tuple[str, tuple[Box, ...]], ...] = ()
    task: str | None = None  # the title of the section that it runs for each item


@dataclass(frozen=True, slots=True)
class Section:
    """A list of steps that begins by itself: the workflow's, a task's, the ones for errors."""

    title: str
    boxes: tuple[Box, ...]
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A computed field and the paths that it follows from."""

    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it. Fields stand in the order in which they are computed."""

    title: str
    description: str
    sections: tuple[Section, ...]
    fields: tuple[Field, ...]


def picture(definition: Definition) -> Picture:
    """What there is to see of a definition, the tasks that it imports included."""
    workflow = definition.workflow
    sections = [Section("steps", _boxes(workflow.steps or ()))]
    for name, task in definition.tasks.items():
        sections.append(Section(f"task {name}", _boxes(task.steps), name))
        sections.append(Section(f"task {name}: on error", _boxes(task.error_handling.cleanup_on_error or ())))
    sections.append(Section("on failure", _boxes(workflow.error_handling.on_failure or ())))
    computed = {name: field.sources for name, field in workflow.state_schema.computed.items()}
    try:
        order = list(Graph(computed).order)
    except DependencyError:  # a picture helps to see what is wrong
        order = list(computed)
    fields = tuple(Field(f"computed.{name}", tuple(dict.fromkeys(map(_whole, computed[name])))) for name in order)
    drawn = tuple(section for section in sections if section.boxes)
    return Picture(one_line(definition.name), one_line(workflow.description, 100), drawn, fields)


def _whole(source: str) -> str:
    """The field that a path leads into."""
    try:
        return one_line(show(parse(source)[:2]))
    except PathError:
        return one_line(source)


def _boxes(steps: tuple[Step, ...]) -> tuple[Box, ...]:
    return tuple(map(_box, steps))


def _box(step: Step) -> Box:
    named = "." not in step.id  # else it is its position
    words = {"then": "yes", "else": "no", "body": "each", "steps": "each"}
    return Box(
        kind=_KINDS.get(step.type, "step"),
        title=step.id if named else step.type,
        note=step.type if named else "",
        detail=one_line(_detail(step)),
        writes=tuple(dict.fromkeys(one_line(path) for path in _writes(step))),
        branches=tuple((words[key], _boxes(children)) for key, children in branches(step).items()),
        task=step.sub_agent_task if isinstance(step, ParallelForEach) else None,
    )


def _detail(step: Step) -> str:
    if isinstance(step, Conditional | While):
        return _bare(str(step.condition))
    if isinstance(step, ForEach | ParallelForEach):
        return f"item of {_bare(str(step.items))}"
    if isinstance(step, IncludeWorkflow):
        return step.workflow
    if isinstance(step, ShellCommand):
        return step.command if isinstance(step.command, str) else " ".join(step.command)
    if isinstance(step, UserMessage | Exit):
        return step.message
    if isinstance(step, AgentStep):
        return step.description or (f"prompt {step.prompt_name}" if step.prompt_name else str(step.prompt))
    if isinstance(step, Wait):
        return f"until {_bare(str(step.until))}" if step.until is not None else ""
    return step.description


def _bare(expression: str) -> str:
    """An expression without the braces around it."""
    text = expression.strip()
    inner = text.removeprefix("{{").removesuffix("}}")
    return inner.strip() if len(inner) == len(text) - 4 and "{{" not in inner else text


def _writes(step: Step) -> Iterator[str]:
    if isinstance(step, StateUpdate):
        for update in step.writes:
            yield update.path
    if isinstance(step, Working) and step.state_update is not None:
        yield step.state_update.path
    if isinstance(step, Fallible) and step.error_state_update is not None:
        yield step.error_state_update.path
    if isinstance(step, ParallelForEach) and step.on_sub_agent_error.error_state_path is not None:
        yield step.on_sub_agent_error.error_state_path


# A picture as nodes and edges, for programs that lay them out by themselves.


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


# A workflow as a Mermaid flow chart, which many viewers of Markdown draw.


_MERMAID_SHAPES = {
    "start": ("([", "])"),
    "end": ("([", "])"),
    "step": ("[", "]"),
    "choice": ("{", "}"),
    "loop": ("{{", "}}"),
    "parallel": ("[[", "]]"),
    "include": ("[[", "]]"),
    "jump": (">", "]"),
    "raw": ("[(", ")]"),
    "computed": ("(", ")"),
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:-_/=()[]+*!?'→…")


def mermaid(picture: Picture) -> str:
    """The picture as text for Mermaid."""
    chart = flow(picture)
    lines = ["---", f'title: "{_title(picture.title)}"', "---", "flowchart TD"]
    for group in chart.groups:
        lines.append(f'  subgraph {group.name}["{_escaped(group.title)}"]')
        lines += [f"    {_mermaid_node(node)}" for node in group.nodes]
        lines.append("  end")
    lines += [f"  {_mermaid_edge(edge)}" for edge in chart.edges]
    return "\n".join(lines) + "\n"


def _mermaid_node(node: Node) -> str:
    opening, closing = _MERMAID_SHAPES[node.shape]
    return f'{node.name}{opening}"{"<br/>".join(map(_escaped, node.lines))}"{closing}'


def _mermaid_edge(edge: Edge) -> str:
    arrow = "-.->" if edge.dotted else "-->"
    word = f'|"{_escaped(edge.word)}"|' if edge.word else ""
    return f"{edge.source} {arrow}{word} {edge.target}"


def _escaped(text: str) -> str:
    """Mermaid has entities with a number sign, and reads quotes, HTML and Markdown inside labels."""
    return "".join(
        character if character in _PLAIN or ord(character) > 0x2FF else f"#{ord(character)};" for character in text
    )


def _title(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


# A workflow in the language of Graphviz.


_DOT_SHAPES = {
    "start": "shape=oval",
    "end": "shape=oval",
    "step": "shape=box",
    "choice": "shape=diamond",
    "loop": "shape=hexagon",
    "parallel": "shape=box3d",
    "include": "shape=box, peripheries=2",
    "jump": "shape=cds",
    "raw": "shape=cylinder",
    "computed": 'shape=box, style="rounded"',
}


def dot(picture: Picture) -> str:
    """The picture as text for `dot`."""
    chart = flow(picture)
    lines = [f"digraph {_quoted(picture.title)} {{", '  node [fontname="sans-serif", fontsize=11];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for group in chart.groups:
        lines += [f"  subgraph cluster_{group.name} {{", f"    label={_quoted(group.title)};"]
        lines += [f"    {_dot_node(node)}" for node in group.nodes]
        lines.append("  }")
    lines += [f"  {_dot_edge(edge)}" for edge in chart.edges]
    return "\n".join([*lines, "}"]) + "\n"


def _dot_node(node: Node) -> str:
    return f"{node.name} [label={_quoted(*node.lines)}, {_DOT_SHAPES[node.shape]}];"


def _dot_edge(edge: Edge) -> str:
    settings = ([f"label={_quoted(edge.word)}"] if edge.word else []) + (["style=dashed"] if edge.dotted else [])
    return f"{edge.source} -> {edge.target}" + (f" [{', '.join(settings)}]" if settings else "") + ";"


def _quoted(*lines: str) -> str:
    """One string. A backslash begins an escape there, `\\N` for the node's name among them."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


# A workflow as a tree of text, for terminals.


def ascii_tree(picture: Picture) -> str:
    """The picture, a line for each step and each field."""
    lines = [picture.title + (f": {picture.description}" if picture.description else "")]
    for section in picture.sections:
        lines += ["", section.title, *_ascii_boxes(section.boxes, "")]
    if picture.fields:
        width = max(len(field.name) for field in picture.fields)
        lines += ["", "data"]
        lines += _tree([f"{field.name:<{width}} <- {', '.join(field.sources)}" for field in picture.fields])
    return "\n".join(lines) + "\n"


def _tree(labels: Sequence[str]) -> Iterator[str]:
    for index, label in enumerate(labels):
        yield ("`- " if index == len(labels) - 1 else "|- ") + label


def _ascii_boxes(boxes: Sequence[Box], indent: str) -> Iterator[str]:
    for index, box in enumerate(boxes):
        last = index == len(boxes) - 1
        yield indent + ("`- " if last else "|- ") + _label(box)
        yield from _inside(box, indent + ("   " if last else "|  "))


def _inside(box: Box, indent: str) -> Iterator[str]:
    if box.kind != "choice":
        for _, boxes in box.branches:
            yield from _ascii_boxes(boxes, indent)
        return
    for index, (word, boxes) in enumerate(box.branches):
        last = index == len(box.branches) - 1
        yield indent + ("`- " if last else "|- ") + f"{word}:"
        yield from _ascii_boxes(boxes, indent + ("   " if last else "|  "))


def _label(box: Box) -> str:
    parts = [box.title]
    if box.note:
        parts.append(f"({box.note})")
    if box.task is not None:
        parts.append(f"=> task {box.task}, for each")
    if box.detail:
        parts.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        parts.append(f"-> {', '.join(box.writes)}")
    return " ".join(parts)


# A workflow as an SVG picture, laid out by ourselves: no other program is needed.


_MARGIN = 24.0
_APART = 40.0  # between two sections
_TITLE = 30.0  # for a section's title


def svg(picture: Picture) -> str:
    """The sections beside each other, and the data below them."""
    canvas = Canvas()
    canvas.text(_MARGIN, _MARGIN + 12, picture.title, "title")
    canvas.text(_MARGIN, _MARGIN + 32, picture.description)
    width = max(width_of([picture.title]) * 1.4, width_of([picture.description])) + 2 * _MARGIN
    x, top, bottom = _MARGIN, _MARGIN + 60, _MARGIN + 60
    for section in picture.sections:
        block = sequence(section.boxes)
        room = max(block.width, width_of([section.title]) + 10)
        canvas.text(x, top, section.title, "section")
        bottom = max(bottom, _section(canvas, block, x + block.left, top + _TITLE))
        x += room + _APART
    width = max(width, x - _APART + _MARGIN)
    if picture.fields:
        data = layers(picture.fields)
        canvas.text(_MARGIN, bottom + _APART, "data", "section")
        data.draw(canvas, _MARGIN, bottom + _APART + 14)
        bottom += _APART + 14 + data.height
        width = max(width, data.width + 2 * _MARGIN)
    return canvas.document(width, bottom + _MARGIN, picture.title)


def _section(canvas: Canvas, block: Block, x: float, y: float) -> float:
    """A section from its first dot to its last; where it ends below."""
    canvas.dot(x, y)
    canvas.way([(x, y + 5), (x, y + 24)])
    block.draw(canvas, x, y + 24)
    y += 24 + block.height
    if block.goes_on:
        canvas.way([(x, y), (x, y + 22)])
        canvas.box(x - 16, y + 22, 32, 8, "end")
        y += 30
    return y


# Steps laid out from above to below: what is inside a step is drawn inside or below it, so no two ways ever cross.


_GAP = 24.0  # between two steps, for the arrow
_LANES = 26.0  # between two branches
_PADDING = 12.0
_STYLES = {"step": "box", "end": "jump", "break": "jump", "continue": "jump"}


@dataclass(frozen=True, slots=True)
class Block:
    """Something that takes room to the left and right of a line down the middle, along which the flow goes."""

    left: float
    right: float
    height: float
    goes_on: bool  # whether the flow leaves it below
    draw: Callable[[Canvas, float, float], None]  # by the line's x, and the upper end

    @property
    def width(self) -> float:
        return self.left + self.right


def sequence(boxes: Sequence[Box]) -> Block:
    """Steps after each other."""
    blocks = [_block(box) for box in boxes]

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for index, block in enumerate(blocks):
            block.draw(canvas, x, y)
            y += block.height
            if index + 1 < len(blocks):
                if block.goes_on:
                    canvas.way([(x, y), (x, y + _GAP)])
                y += _GAP

    return Block(
        left=max((block.left for block in blocks), default=20),
        right=max((block.right for block in blocks), default=20),
        height=sum(block.height for block in blocks) + _GAP * max(len(blocks) - 1, 0),
        goes_on=all(block.goes_on for block in blocks),
        draw=draw,
    )


def _block(box: Box) -> Block:
    if box.kind == "choice":
        return _choice(box)
    if box.kind == "loop":
        return _loop(box)
    return _plain(box)


def lines_of(box: Box) -> list[str]:
    """What stands in a step's box."""
    lines = [f"{box.title} · {box.note}" if box.note else box.title]
    if box.task is not None:
        lines.append(f"for each {box.detail}: task {box.task}")
    elif box.detail:
        lines.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        lines.append(f"→ {', '.join(box.writes)}")
    return lines


def _size(lines: Sequence[str]) -> tuple[float, float]:
    return width_of(lines) + 2 * _PADDING, LINE * len(lines) + 10


def _write(canvas: Canvas, x: float, y: float, lines: Sequence[str]) -> None:
    for index, line in enumerate(lines):
        canvas.text(x, y + LINE * (index + 1), line, "strong" if index == 0 else "", middle=True)


def _plain(box: Box) -> Block:
    lines = lines_of(box)
    width, height = _size(lines)
    style = _STYLES.get(box.kind, box.kind)
    frame = 4.0 if style in ("parallel", "include") else 0.0  # two frames: there is more behind it

    def draw(canvas: Canvas, x: float, y: float) -> None:
        if frame:
            canvas.box(x - width / 2 - frame, y, width + 2 * frame, height + 2 * frame, style)
        canvas.box(x - width / 2, y + frame, width, height, style, round_by=height / 2 if style == "jump" else 4)
        _write(canvas, x, y + frame, lines)

    goes_on = box.kind not in ("end", "break", "continue")
    return Block(width / 2 + 4, width / 2 + 4, height + 2 * frame, goes_on, draw)


def _choice(box: Box) -> Block:
    lines = lines_of(box)
    width, height = _size(lines)
    width += 2 * _PADDING
    words = dict(box.branches)
    lanes = [(word, sequence(words.get(word, ()))) for word in ("yes", "no")]
    # From the line of the first lane to that of the second; the step itself stands in the middle above.
    apart = lanes[0][1].right + _LANES + lanes[1][1].left
    tallest = max(lane.height for _, lane in lanes)
    ends = any(lane.goes_on for _, lane in lanes)
    total = height + _GAP + tallest + (_GAP / 2 if ends else 0)

    def draw(canvas: Canvas, x: float, y: float) -> None:
        canvas.pointed(x - width / 2, y, width, height, "choice")
        _write(canvas, x, y, lines)
        top, bottom = y + height + _GAP, y + total
        for (word, lane), at in zip(lanes, (x - apart / 2, x + apart / 2), strict=True):
            has_steps = bool(words.get(word))
            canvas.way([(x, y + height), (x, top - 14), (at, top - 14), (at, top)], arrow=has_steps)
            canvas.text(at + (-24 if word == "yes" else 6), top - 4, word, "word")
            lane.draw(canvas, at, top)
            if lane.goes_on:
                canvas.way([(at, top + lane.height), (at, bottom), (x, bottom)], arrow=False)

    left = max(apart / 2 + lanes[0][1].left, width / 2)
    right = max(apart / 2 + lanes[1][1].right, width / 2)
    return Block(left, right, total, ends, draw)


def _loop(box: Box) -> Block:
    lines = lines_of(box)
    width, height = _size(lines)
    width += 2 * _PADDING
    body = sequence([inner for _, boxes in box.branches for inner in boxes])
    left = max(body.left + 34, width / 2 + _PADDING)
    right = max(body.right + 14, width / 2 + _PADDING)
    below = 22.0
    total = _PADDING + height + _GAP + body.height + below

    def draw(canvas: Canvas, x: float, y: float) -> None:
        canvas.box(x - left, y, left + right, total, "frame", round_by=8)
        head = y + _PADDING
        canvas.pointed(x - width / 2, head, width, height, "loop")
        _write(canvas, x, head, lines)
        top = head + height + _GAP
        canvas.way([(x, head + height), (x, top)])
        body.draw(canvas, x, top)
        if body.goes_on:
            bottom, back = top + body.height, x - left + 14
            # Up again on the left, and into the step that decides: below its point, or into its side.
            turn = [(x, bottom), (x, bottom + 10), (back, bottom + 10), (back, head + height / 2)]
            canvas.way([*turn, (x - width / 2, head + height / 2)])

    return Block(left, right, total, goes_on=True, draw=draw)


# Fields laid out from left to right: each stands to the right of everything that it follows from.


_HEIGHT, _ROW, _BETWEEN, _FIELD_PADDING = 26.0, 38.0, 70.0, 10.0


@dataclass(frozen=True, slots=True)
class Layers:
    """Names in columns, and the ways between them, column by column: what is on a way only is a bend, not a field."""

    columns: tuple[tuple[str, ...], ...]
    ways: tuple[tuple[str, ...], ...]
    bends: frozenset[str]

    @property
    def width(self) -> float:
        """How wide the drawing is."""
        return sum(map(self._width, self.columns)) + _BETWEEN * (len(self.columns) - 1)

    @property
    def height(self) -> float:
        """How high the drawing is."""
        return max(map(len, self.columns)) * _ROW

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """With the upper left corner there."""
        places: dict[str, tuple[float, float, float]] = {}  # left, right, middle
        for column in self.columns:
            width = self._width(column)
            first = y + (self.height - len(column) * _ROW) / 2
            for row, name in enumerate(column):
                room = width if name in self.bends else width_of([name]) + 2 * _FIELD_PADDING
                places[name] = (x, x + room, first + row * _ROW + _HEIGHT / 2)
            x += width + _BETWEEN
        for way in self.ways:
            for start, end in pairwise(way):
                _, from_x, from_y = places[start]
                to_x, _, to_y = places[end]
                canvas.curve((from_x, from_y), (to_x, to_y), arrow=end not in self.bends)
                if end in self.bends:
                    canvas.curve((to_x, to_y), (places[end][1], to_y), arrow=False)
        for name, (left, right, middle) in places.items():
            if name in self.bends:
                continue
            style = "computed" if name.startswith("computed.") else "raw"
            canvas.box(left, middle - _HEIGHT / 2, right - left, _HEIGHT, style, round_by=13)
            canvas.text((left + right) / 2, middle + 4, name, middle=True)

    def _width(self, column: Sequence[str]) -> float:
        return width_of([name for name in column if name not in self.bends]) + 2 * _FIELD_PADDING


def layers(fields: Sequence[Field]) -> Layers:
    """Columns by the longest way from what is written; in each, near to what it follows from."""
    depth = _depths(fields)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, level in depth.items():
        columns[level].append(name)
    before: dict[str, list[str]] = {}
    ways: list[tuple[str, ...]] = []
    bends: set[str] = set()
    for one in fields:
        for source in one.sources:
            way = [source]
            for level in range(depth[source] + 1, depth[one.name]):
                # A way past other columns has a row of its own there, so that no box stands on it.
                bend = f"{source}\n{one.name}\n{level}"
                columns[level].append(bend)
                bends.add(bend)
                way.append(bend)
            ways.append((*way, one.name))
            for start, end in pairwise(ways[-1]):
                before.setdefault(end, []).append(start)
    return Layers(tuple(_sorted(columns, before)), tuple(ways), frozenset(bends))


def _depths(fields: Sequence[Field]) -> dict[str, int]:
    """The column of every name. What is written stands just before its first reader."""
    depth: dict[str, int] = {}
    computed = {one.name for one in fields}
    for one in fields:  # in the order of computation: what it follows from has its depth already
        depth[one.name] = 1 + max((depth.get(source, 0) for source in one.sources), default=0)
    for one in fields:
        for source in one.sources:
            if source not in computed:
                depth[source] = min(depth.get(source, depth[one.name] - 1), depth[one.name] - 1)
    return depth


def _sorted(columns: list[list[str]], before: dict[str, list[str]]) -> Iterator[tuple[str, ...]]:
    rows: dict[str, float] = {}

    def wanted(name: str) -> float:
        near = [rows[one] for one in before.get(name, ()) if one in rows]
        return sum(near) / len(near) if near else 0.0

    for names in columns:
        names.sort(key=wanted)
        rows.update({name: row - (len(names) - 1) / 2 for row, name in enumerate(names)})
        yield tuple(names)


# The few shapes that our SVG pictures are made of, and how much room a text needs.


CHARACTER = 7.3  # the width of one, in a font of 12 in which all are equally wide
LINE = 16.0
_STYLE = """\
text { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2933; }
text.title { font-size: 16px; font-weight: bold; } text.section { font-weight: bold; fill: #52606d; }
text.word { font-size: 11px; fill: #52606d; } text.strong { font-weight: bold; }
.box { fill: #ffffff; stroke: #52606d; } .choice { fill: #fff8e1; stroke: #b7791f; }
.loop { fill: #eef6ff; stroke: #2b6cb0; } .parallel, .include { fill: #f3ebff; stroke: #6b46c1; }
.end { fill: #1f2933; stroke: #1f2933; } .jump { fill: #f1f5f9; stroke: #52606d; }
.raw { fill: #f1f5f9; stroke: #52606d; } .computed { fill: #e6fffa; stroke: #2c7a7b; }
.frame { fill: #f7fbff; stroke: #2b6cb0; stroke-dasharray: 5 3; }
.way { fill: none; stroke: #52606d; } .data { fill: none; stroke: #2c7a7b; opacity: 0.7; }
"""


class Canvas:
    """Shapes, in the order in which they are painted."""

    def __init__(self) -> None:
        self.shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, style: str, *, round_by: float = 4) -> None:
        """A rectangle by its upper left corner."""
        size = f'width="{width:.1f}" height="{height:.1f}" rx="{round_by:g}"'
        self.shapes.append(f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" {size}/>')

    def pointed(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """A box with points to the left and to the right, for what decides."""
        tip, middle = 12.0, y + height / 2
        corners = [
            (x, middle),
            (x + tip, y),
            (x + width - tip, y),
            (x + width, middle),
            (x + width - tip, y + height),
            (x + tip, y + height),
        ]
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in corners)
        self.shapes.append(f'<polygon class="{style}" points="{points}"/>')

    def dot(self, x: float, y: float) -> None:
        """Where something begins."""
        self.shapes.append(f'<circle class="end" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')

    def text(self, x: float, y: float, text: str, style: str = "", *, middle: bool = False) -> None:
        """One line, by its left end or its middle."""
        anchor = ' text-anchor="middle"' if middle else ""
        kind = f' class="{style}"' if style else ""
        self.shapes.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>')

    def way(self, points: Sequence[tuple[float, float]], *, arrow: bool = True) -> None:
        """A line through points, with an arrow at its end."""
        path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<path class="way" d="{path}"' + (' marker-end="url(#arrow)"' if arrow else "") + "/>")

    def curve(self, start: tuple[float, float], end: tuple[float, float], *, arrow: bool) -> None:
        """A curve to the right, for data."""
        (x, y), (to_x, to_y) = start, end
        bend = max((to_x - x) / 2, 20)
        path = f"M{x:.1f},{y:.1f} C{x + bend:.1f},{y:.1f} {to_x - bend:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}"
        self.shapes.append(f'<path class="data" d="{path}"' + (' marker-end="url(#arrow)"' if arrow else "") + "/>")

    def document(self, width: float, height: float, title: str) -> str:
        """All of it as a file."""
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        marker = (
            '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#52606d"/></marker>'
        )
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f"<defs>{marker}</defs>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]
        return "\n".join([*head, *self.shapes, "</svg>"]) + "\n"


def width_of(lines: Sequence[str]) -> float:
    """How wide the widest of some lines is. Some characters take two places."""
    widths = [sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line) for line in lines]
    return max(widths, default=0) * CHARACTER


# Pictures of workflows, one file for each format.


FORMATS: dict[str, Callable[[Picture], str]] = {
    "mermaid": mermaid,
    "dot": dot,
    "svg": svg,
    "ascii": ascii_tree,
}
