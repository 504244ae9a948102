"""Draws a workflow, its steps and its data: as Mermaid, Graphviz, text, or shapes with coordinates, of which SVG is
made."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from sidecar.analysis.names import bare
from sidecar.model.steps import (
    AgentStep,
    Conditional,
    Exit,
    Fallible,
    ForEach,
    IncludeWorkflow,
    ParallelForEach,
    ShellCommand,
    StateUpdate,
    UserMessage,
    Wait,
    While,
    Working,
    branches,
)
from sidecar.state.paths import PathError, parse, show
from sidecar.state.reactive import DependencyError, Graph
from sidecar.text import one_line

if TYPE_CHECKING:
    from sidecar.catalog.workflows import Definition
    from sidecar.model.steps import Step

_KINDS = {
    "conditional": "choice",
    "while": "loop",
    "foreach": "loop",
    "parallel_foreach": "parallel",
    "include_workflow": "include",
    "exit": "end",
    "break": "break",
    "continue": "continue",
}
_WORDS = {"then": "yes", "else": "no", "body": "each", "steps": "each"}


@dataclass(frozen=True, slots=True)
class Box:
    """One step. `branches` are the steps inside it, each list with the word for when it runs."""

    step_id: str
    kind: str
    title: str  # its id, or its type where it has none
    note: str  # its type, where the title is its id
    detail: str  # its condition, its items, its command
    writes: tuple[str, ...]
    branches: tuple[tuple[str, tuple[Box, ...]], ...] = ()
    task: str | None = None  # which it runs for each item


class Section(NamedTuple):
    """A list of steps that begins by itself: the workflow's, those of a task, those for errors."""

    title: str
    boxes: tuple[Box, ...]
    task: str | None = None


class Field(NamedTuple):
    """A computed field and the paths that it is computed from."""

    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What there is to see of a workflow. Fields stand in the order in which they are computed."""

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
    fields = tuple(Field(f"computed.{name}", tuple(dict.fromkeys(map(_field, computed[name])))) for name in order)
    shown = tuple(section for section in sections if section.boxes)
    return Picture(one_line(definition.name), one_line(workflow.description, 100), shown, fields)


def _field(source: str) -> str:
    """The field that a path leads into."""
    try:
        return one_line(show(parse(source)[:2]))
    except PathError:
        return one_line(source)


def _boxes(steps: tuple[Step, ...]) -> tuple[Box, ...]:
    return tuple(map(_box, steps))


def _box(step: Step) -> Box:
    named = "." not in step.id  # else it is its position
    return Box(
        step_id=step.id,
        kind=_KINDS.get(step.type, "step"),
        title=step.id if named else step.type,
        note=step.type if named else "",
        detail=one_line(_detail(step)),
        writes=tuple(dict.fromkeys(map(one_line, _writes(step)))),
        branches=tuple((_WORDS[key], _boxes(children)) for key, children in branches(step).items()),
        task=step.sub_agent_task if isinstance(step, ParallelForEach) else None,
    )


def _detail(step: Step) -> str:
    if isinstance(step, Conditional | While):
        return bare(str(step.condition))
    if isinstance(step, ForEach | ParallelForEach):
        return f"item of {bare(str(step.items))}"
    if isinstance(step, IncludeWorkflow):
        return step.workflow
    if isinstance(step, ShellCommand):
        return step.command if isinstance(step.command, str) else " ".join(step.command)
    if isinstance(step, UserMessage | Exit):
        return step.message
    if isinstance(step, AgentStep):
        return step.description or (f"prompt {step.prompt_name}" if step.prompt_name else str(step.prompt))
    if isinstance(step, Wait):
        return f"until {bare(str(step.until))}" if step.until is not None else ""
    return step.description


def _writes(step: Step) -> Iterator[str]:
    if isinstance(step, StateUpdate):
        yield from (update.path for update in step.writes)
    if isinstance(step, Working) and step.state_update is not None:
        yield step.state_update.path
    if isinstance(step, Fallible) and step.error_state_update is not None:
        yield step.error_state_update.path
    if isinstance(step, ParallelForEach) and step.on_sub_agent_error.error_state_path is not None:
        yield step.on_sub_agent_error.error_state_path


# --- text, as a tree


def _ascii(picture: Picture) -> str:
    """A line for each step and each field."""
    lines = [picture.title + (f": {picture.description}" if picture.description else "")]
    for section in picture.sections:
        lines += ["", section.title, *_tree([_branch(box) for box in section.boxes])]
    if picture.fields:
        width = max(len(field.name) for field in picture.fields)
        lines += ["", "data"]
        lines += _tree([(f"{field.name:<{width}} <- {', '.join(field.sources)}", []) for field in picture.fields])
    return "\n".join(lines) + "\n"


_Branch = tuple[str, list["_Branch"]]  # a label, and what is below it


def _branch(box: Box) -> _Branch:
    parts = [box.title]
    if box.note:
        parts.append(f"({box.note})")
    if box.task is not None:
        parts.append(f"=> task {box.task}, for each")
    if box.detail:
        parts.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        parts.append(f"-> {', '.join(box.writes)}")
    inside: list[_Branch] = [(f"{word}:", [_branch(each) for each in boxes]) for word, boxes in box.branches]
    if box.kind != "choice":
        inside = [each for _, boxes in inside for each in boxes]
    return " ".join(parts), inside


def _tree(entries: Sequence[_Branch], indent: str = "") -> Iterator[str]:
    for index, (label, inside) in enumerate(entries):
        last = index == len(entries) - 1
        yield indent + ("`- " if last else "|- ") + label
        yield from _tree(inside, indent + ("   " if last else "|  "))


# --- nodes and edges, for programs that lay them out themselves

# What each kind of node is in Mermaid, and in Graphviz.
_NODES = {
    "start": ("([", "])", "shape=oval"),
    "end": ("([", "])", "shape=oval"),
    "step": ("[", "]", "shape=box"),
    "choice": ("{", "}", "shape=diamond"),
    "loop": ("{{", "}}", "shape=hexagon"),
    "parallel": ("[[", "]]", "shape=box3d"),
    "include": ("[[", "]]", "shape=box, peripheries=2"),
    "break": (">", "]", "shape=cds"),
    "continue": (">", "]", "shape=cds"),
    "raw": ("[(", ")]", "shape=cylinder"),
    "computed": ("(", ")", 'shape=box, style="rounded"'),
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:-_/=()[]+*!?'→…")
_Exit = tuple[str, str]  # where the flow leaves: a node, and the word on the edge


class _Node(NamedTuple):
    name: str
    lines: Sequence[str]
    kind: str


class _Edge(NamedTuple):
    source: str
    target: str
    word: str = ""
    dotted: bool = False  # not the flow itself, but a task that is started


class _Chart:
    """A picture as groups of nodes, with edges between any of them."""

    def __init__(self, picture: Picture) -> None:
        self.groups: list[tuple[str, list[_Node]]] = []
        self.edges: list[_Edge] = []
        self._count = 0
        first: dict[str, str] = {}  # the first node of each task
        self._tasks: list[tuple[str, str]] = []  # a node, and the task that it starts
        for section in picture.sections:
            self.groups.append((section.title, []))
            start = self._node(("start",), "start")
            if section.task is not None:
                first[section.task] = start
            exits = self._sequence(section.boxes, [(start, "")], None)
            if exits:
                self._join(exits, self._node(("end",), "end"))
        self.edges += [_Edge(node, first[task], "for each item", True) for node, task in self._tasks if task in first]
        if picture.fields:
            self.groups.append(("data", []))
            known = {field.name: self._node((field.name,), "computed") for field in picture.fields}
            for field in picture.fields:
                for source in field.sources:
                    if source not in known:
                        known[source] = self._node((source,), "raw")
                    self.edges.append(_Edge(known[source], known[field.name]))

    def _node(self, lines: Sequence[str], kind: str) -> str:
        name = f"n{self._count}"
        self._count += 1
        self.groups[-1][1].append(_Node(name, lines, kind))
        return name

    def _join(self, exits: Sequence[_Exit], target: str) -> None:
        self.edges += [_Edge(source, target, word) for source, word in exits]

    def _sequence(self, boxes: Sequence[Box], before: list[_Exit], loop: tuple[str, list[_Exit]] | None) -> list[_Exit]:
        """Where the flow leaves some steps; `loop` is the head of the loop around them, and its `break`s."""
        for box in boxes:
            title = f"{box.title} ({box.note})" if box.note else box.title
            writes = f"→ {', '.join(box.writes)}" if box.writes else ""
            node = self._node([line for line in (title, box.detail, writes) if line], box.kind)
            self._join(before, node)
            before = self._after(box, node, loop)
        return before

    def _after(self, box: Box, node: str, loop: tuple[str, list[_Exit]] | None) -> list[_Exit]:
        if box.kind == "choice":
            words = dict(box.branches)
            return [out for word in ("yes", "no") for out in self._sequence(words.get(word, ()), [(node, word)], loop)]
        if box.kind == "loop":
            breaks: list[_Exit] = []
            for word, boxes in box.branches:
                self._join(self._sequence(boxes, [(node, word)], (node, breaks)), node)
            return [(node, "done"), *breaks]
        if box.kind == "break" and loop is not None:
            loop[1].append((node, ""))
            return []
        if box.kind == "continue" and loop is not None:
            self._join([(node, "")], loop[0])
            return []
        if box.task is not None:
            self._tasks.append((node, box.task))
        return [] if box.kind == "end" else [(node, "")]


def _mermaid(picture: Picture) -> str:
    """A flow chart for Mermaid, which many viewers of Markdown draw."""
    chart = _Chart(picture)
    title = picture.title.replace("\\", "\\\\").replace('"', '\\"')
    lines = ["---", f'title: "{title}"', "---", "flowchart TD"]
    for number, (title, nodes) in enumerate(chart.groups):
        lines.append(f'  subgraph g{number}["{_entities(title)}"]')
        for node in nodes:
            opening, closing, _ = _NODES[node.kind]
            lines.append(f'    {node.name}{opening}"{"<br/>".join(map(_entities, node.lines))}"{closing}')
        lines.append("  end")
    for edge in chart.edges:
        word = f'|"{_entities(edge.word)}"|' if edge.word else ""
        lines.append(f"  {edge.source} {'-.->' if edge.dotted else '-->'}{word} {edge.target}")
    return "\n".join(lines) + "\n"


def _entities(text: str) -> str:
    """Mermaid has entities with a number sign, and reads quotes, HTML and Markdown inside labels."""
    return "".join(one if one in _PLAIN or ord(one) > 0x2FF else f"#{ord(one)};" for one in text)


def _dot(picture: Picture) -> str:
    """A graph for Graphviz."""
    chart = _Chart(picture)
    lines = [f"digraph {_quoted(picture.title)} {{", '  node [fontname="sans-serif", fontsize=11];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for number, (title, nodes) in enumerate(chart.groups):
        lines += [f"  subgraph cluster_g{number} {{", f"    label={_quoted(title)};"]
        lines += [f"    {node.name} [label={_quoted(*node.lines)}, {_NODES[node.kind][2]}];" for node in nodes]
        lines.append("  }")
    for edge in chart.edges:
        settings = ([f"label={_quoted(edge.word)}"] if edge.word else []) + (["style=dashed"] if edge.dotted else [])
        lines.append(f"  {edge.source} -> {edge.target}" + (f" [{', '.join(settings)}]" if settings else "") + ";")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(*lines: str) -> str:
    """One string. A backslash begins an escape there, `\\N` for the node's name among them."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


# --- shapes with coordinates

Shape = tuple[str, dict[str, str], str]  # an element of SVG: its tag, its attributes, its text
_Point = tuple[float, float]
_CHARACTER = 7.3  # the width of one, in a font of 12 in which all are equally wide
_LINE = 16.0
_MARGIN = 24.0
_APART = 40.0  # between two sections
_GAP = 24.0  # between two steps, for the arrow
_LANES = 26.0  # between two branches
_PADDING = 12.0
_ARROW = "url(#arrow)"
STYLE = """\
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
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>{title}</title>
<style>{style}</style>
<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">\
<path d="M0,0 L8,4 L0,8 z" fill="#52606d"/></marker></defs>
<rect width="100%" height="100%" fill="#ffffff"/>
"""


class Drawing(NamedTuple):
    """Shapes in the order in which they are painted. The box of a step has its id as `data-step`; classes colour it."""

    width: float
    height: float
    shapes: list[Shape]


def drawing(picture: Picture) -> Drawing:
    """The sections beside each other, and the data below them."""
    shapes = [_text(_MARGIN, _MARGIN + 12, picture.title, "title")]
    shapes.append(_text(_MARGIN, _MARGIN + 32, picture.description))
    width = max(_width([picture.title]) * 1.4, _width([picture.description])) + 2 * _MARGIN
    x, top, bottom = _MARGIN, _MARGIN + 60, _MARGIN + 60
    for section in picture.sections:
        block = _sequence(section.boxes)
        shapes.append(_text(x, top, section.title, "section"))
        line, y = x + block.left, top + 30
        shapes.append(("circle", {"class": "end", "cx": f"{line:.1f}", "cy": f"{y:.1f}", "r": "5"}, ""))
        shapes += [_way([(line, y + 5), (line, y + 24)]), *block.shapes(line, y + 24)]
        y += 24 + block.height
        if block.goes_on:
            shapes += [_way([(line, y), (line, y + 22)]), _rect(line - 16, y + 22, 32, 8, "end")]
            y += 30
        bottom = max(bottom, y)
        x += max(block.left + block.right, _width([section.title]) + 10) + _APART
    width = max(width, x - _APART + _MARGIN)
    if picture.fields:
        shapes.append(_text(_MARGIN, bottom + _APART, "data", "section"))
        data = _data(picture.fields, _MARGIN, bottom + _APART + 14)
        shapes += data.shapes
        bottom += _APART + 14 + data.height
        width = max(width, data.width + 2 * _MARGIN)
    return Drawing(width, bottom + _MARGIN, shapes)


def _svg(picture: Picture) -> str:
    """A file that any browser shows."""
    width, height, shapes = drawing(picture)
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    elements = []
    for tag, attributes, text in shapes:
        given = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
        elements.append(f"<{tag}{given}>{escape(text)}</{tag}>" if tag == "text" else f"<{tag}{given}/>")
    head = _HEAD.format(size=size, title=escape(picture.title), style=STYLE)
    return head + "\n".join([*elements, "</svg>"]) + "\n"


def _rect(x: float, y: float, width: float, height: float, style: str, *, radius: float = 4, step: str = "") -> Shape:
    size = {"width": f"{width:.1f}", "height": f"{height:.1f}", "rx": f"{radius:g}"}
    more = {"data-step": step} if step else {}
    return "rect", {"class": style, "x": f"{x:.1f}", "y": f"{y:.1f}", **size, **more}, ""


def _pointed(x: float, y: float, width: float, height: float, box: Box) -> Shape:
    """A box with points to the left and to the right, for a step that decides."""
    tip, middle, right = 12.0, y + height / 2, x + width
    upper, lower = [(x + tip, y), (right - tip, y)], [(right - tip, y + height), (x + tip, y + height)]
    points = " ".join(f"{left:.1f},{top:.1f}" for left, top in [(x, middle), *upper, (right, middle), *lower])
    return "polygon", {"class": box.kind, "points": points, "data-step": box.step_id}, ""


def _text(x: float, y: float, text: str, style: str = "", *, middle: bool = False) -> Shape:
    attributes = {"class": style} if style else {}
    attributes |= {"x": f"{x:.1f}", "y": f"{y:.1f}"} | ({"text-anchor": "middle"} if middle else {})
    return "text", attributes, text


def _way(points: Sequence[_Point], *, arrow: bool = True) -> Shape:
    """A line through points, with an arrow at its end."""
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return "path", {"class": "way", "d": path} | ({"marker-end": _ARROW} if arrow else {}), ""


def _curve(start: _Point, end: _Point, *, arrow: bool) -> Shape:
    """A curve to the right, for data."""
    (x, y), (to_x, to_y) = start, end
    bend = max((to_x - x) / 2, 20)
    path = f"M{x:.1f},{y:.1f} C{x + bend:.1f},{y:.1f} {to_x - bend:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}"
    return "path", {"class": "data", "d": path} | ({"marker-end": _ARROW} if arrow else {}), ""


def _width(lines: Sequence[str]) -> float:
    """How wide the widest of some lines is. Some characters take two places."""
    widths = [sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line) for line in lines]
    return max(widths, default=0) * _CHARACTER


# --- steps from above to below: what is inside a step is drawn inside or below it, so that no two ways cross


@dataclass(frozen=True, slots=True)
class _Block:
    """Something that takes room to the left and right of the line along which the flow goes down."""

    left: float
    right: float
    height: float
    goes_on: bool  # whether the flow leaves it below
    shapes: Callable[[float, float], Iterator[Shape]]  # by the line's x, and the upper end


def _sequence(boxes: Sequence[Box]) -> _Block:
    makers = {"choice": _choice, "loop": _loop}
    blocks = [makers.get(box.kind, _plain)(box) for box in boxes]

    def shapes(x: float, y: float) -> Iterator[Shape]:
        for index, block in enumerate(blocks):
            yield from block.shapes(x, y)
            y += block.height
            if index + 1 < len(blocks):
                if block.goes_on:
                    yield _way([(x, y), (x, y + _GAP)])
                y += _GAP

    return _Block(
        left=max((block.left for block in blocks), default=20),
        right=max((block.right for block in blocks), default=20),
        height=sum(block.height for block in blocks) + _GAP * max(len(blocks) - 1, 0),
        goes_on=all(block.goes_on for block in blocks),
        shapes=shapes,
    )


def _content(box: Box) -> tuple[list[str], float, float]:
    """The lines of a step's box, and the room that they take."""
    lines = [f"{box.title} · {box.note}" if box.note else box.title]
    if box.task is not None:
        lines.append(f"for each {box.detail}: task {box.task}")
    elif box.detail:
        lines.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        lines.append(f"→ {', '.join(box.writes)}")
    return lines, _width(lines) + 2 * _PADDING, _LINE * len(lines) + 10


def _written(x: float, y: float, lines: Sequence[str]) -> list[Shape]:
    return [
        _text(x, y + _LINE * (index + 1), line, "" if index else "strong", middle=True)
        for index, line in enumerate(lines)
    ]


def _plain(box: Box) -> _Block:
    lines, width, height = _content(box)
    goes_on = box.kind not in ("end", "break", "continue")
    style = "box" if box.kind == "step" else box.kind if goes_on else "jump"
    frame = 4.0 if style in ("parallel", "include") else 0.0  # two frames: there is more behind it
    radius = 4 if goes_on else height / 2

    def shapes(x: float, y: float) -> Iterator[Shape]:
        if frame:
            yield _rect(x - width / 2 - frame, y, width + 2 * frame, height + 2 * frame, style, step=box.step_id)
        yield _rect(x - width / 2, y + frame, width, height, style, radius=radius, step=box.step_id)
        yield from _written(x, y + frame, lines)

    return _Block(width / 2 + 4, width / 2 + 4, height + 2 * frame, goes_on, shapes)


def _choice(box: Box) -> _Block:
    lines, width, height = _content(box)
    width += 2 * _PADDING
    words = dict(box.branches)
    lanes = [(word, _sequence(words.get(word, ()))) for word in ("yes", "no")]
    # From the line of the first lane to that of the second; the step itself stands in the middle above.
    apart = lanes[0][1].right + _LANES + lanes[1][1].left
    goes_on = any(lane.goes_on for _, lane in lanes)
    total = height + _GAP + max(lane.height for _, lane in lanes) + (_GAP / 2 if goes_on else 0)

    def shapes(x: float, y: float) -> Iterator[Shape]:
        yield from [_pointed(x - width / 2, y, width, height, box), *_written(x, y, lines)]
        top, bottom = y + height + _GAP, y + total
        for (word, lane), at in zip(lanes, (x - apart / 2, x + apart / 2), strict=True):
            turn = [(x, y + height), (x, top - 14), (at, top - 14), (at, top)]
            yield _way(turn, arrow=bool(words.get(word)))
            yield _text(at + (-24 if word == "yes" else 6), top - 4, word, "word")
            yield from lane.shapes(at, top)
            if lane.goes_on:
                yield _way([(at, top + lane.height), (at, bottom), (x, bottom)], arrow=False)

    left = max(apart / 2 + lanes[0][1].left, width / 2)
    right = max(apart / 2 + lanes[1][1].right, width / 2)
    return _Block(left, right, total, goes_on, shapes)


def _loop(box: Box) -> _Block:
    lines, width, height = _content(box)
    width += 2 * _PADDING
    body = _sequence([inner for _, boxes in box.branches for inner in boxes])
    left = max(body.left + 34, width / 2 + _PADDING)
    right = max(body.right + 14, width / 2 + _PADDING)
    total = _PADDING + height + _GAP + body.height + 22

    def shapes(x: float, y: float) -> Iterator[Shape]:
        yield _rect(x - left, y, left + right, total, "frame", radius=8)
        head = y + _PADDING
        yield from [_pointed(x - width / 2, head, width, height, box), *_written(x, head, lines)]
        top = head + height + _GAP
        yield _way([(x, head + height), (x, top)])
        yield from body.shapes(x, top)
        if body.goes_on:
            bottom, back = top + body.height, x - left + 14
            # Up again on the left, and into the side of the step that decides.
            turn = [(x, bottom), (x, bottom + 10), (back, bottom + 10), (back, head + height / 2)]
            yield _way([*turn, (x - width / 2, head + height / 2)])

    return _Block(left, right, total, goes_on=True, shapes=shapes)


# --- fields from left to right: each stands to the right of all that it is computed from

_FIELD_HEIGHT, _ROW, _BETWEEN, _FIELD_PADDING = 26.0, 38.0, 70.0, 10.0


def _data(fields: Sequence[Field], x: float, y: float) -> Drawing:
    """Fields in columns, with the upper left corner there."""
    columns, ways, bends = _columns(fields)
    height = max(map(len, columns)) * _ROW
    widths = [_width([name for name in column if name not in bends]) + 2 * _FIELD_PADDING for column in columns]
    places: dict[str, tuple[float, float, float]] = {}  # left, right, middle
    for column, width in zip(columns, widths, strict=True):
        first = y + (height - len(column) * _ROW) / 2
        for row, name in enumerate(column):
            room = width if name in bends else _width([name]) + 2 * _FIELD_PADDING
            places[name] = (x, x + room, first + row * _ROW + _FIELD_HEIGHT / 2)
        x += width + _BETWEEN
    shapes: list[Shape] = []
    for start, end in (pair for way in ways for pair in pairwise(way)):
        (_, from_x, from_y), (to_x, past_x, to_y) = places[start], places[end]
        shapes.append(_curve((from_x, from_y), (to_x, to_y), arrow=end not in bends))
        if end in bends:
            shapes.append(_curve((to_x, to_y), (past_x, to_y), arrow=False))
    for name, (left, right, middle) in places.items():
        if name not in bends:
            style = "computed" if name.startswith("computed.") else "raw"
            shapes.append(_rect(left, middle - _FIELD_HEIGHT / 2, right - left, _FIELD_HEIGHT, style, radius=13))
            shapes.append(_text((left + right) / 2, middle + 4, name, middle=True))
    return Drawing(sum(widths) + _BETWEEN * (len(columns) - 1), height, shapes)


def _columns(fields: Sequence[Field]) -> tuple[list[list[str]], list[list[str]], set[str]]:
    """Names in columns, near to what they are computed from; the ways between them; and which names are bends of ways.

    A way past other columns has a row of its own there, its bend, so that no box stands on it.
    """
    depth = _depths(fields)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, level in depth.items():
        columns[level].append(name)
    before: dict[str, list[str]] = {}
    ways: list[list[str]] = []
    bends: set[str] = set()
    for field in fields:
        for source in field.sources:
            passed = {f"{source}\n{field.name}\n{at}": at for at in range(depth[source] + 1, depth[field.name])}
            for bend, level in passed.items():
                columns[level].append(bend)
            bends.update(passed)
            ways.append([source, *passed, field.name])
            for start, end in pairwise(ways[-1]):
                before.setdefault(end, []).append(start)
    rows: dict[str, float] = {}

    def wanted(name: str) -> float:
        near = [rows[one] for one in before.get(name, ()) if one in rows]
        return sum(near) / len(near) if near else 0.0

    for column in columns:
        column.sort(key=wanted)
        rows.update({name: row - (len(column) - 1) / 2 for row, name in enumerate(column)})
    return columns, ways, bends


def _depths(fields: Sequence[Field]) -> dict[str, int]:
    """The column of every name. What is written by steps stands just before its first reader."""
    depth: dict[str, int] = {}
    computed = {field.name for field in fields}
    for field in fields:  # in the order of computation: what it is computed from has its depth already
        depth[field.name] = 1 + max((depth.get(source, 0) for source in field.sources), default=0)
    for field in fields:
        for source in field.sources:
            if source not in computed:
                depth[source] = min(depth.get(source, depth[field.name] - 1), depth[field.name] - 1)
    return depth


FORMATS: dict[str, Callable[[Picture], str]] = {"mermaid": _mermaid, "dot": _dot, "svg": _svg, "ascii": _ascii}
