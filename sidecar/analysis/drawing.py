"""Draws a workflow, its steps and its computed fields, as Mermaid, Graphviz, a tree of text, or SVG."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import NamedTuple

from sidecar.analysis.names import bare
from sidecar.catalog.workflows import Definition
from sidecar.model import steps as step_types
from sidecar.model.steps import Step, Steps, branches
from sidecar.state.paths import PathError, parse, show
from sidecar.state.reactive import DependencyError, Graph
from sidecar.text import one_line


@dataclass(frozen=True, slots=True)
class Box:
    """One step. `branches` are the steps inside it, each list under the word for when it runs."""

    step_id: str
    kind: str
    title: str  # its id, or its type where it has none
    note: str  # its type, where the title is its id
    detail: str  # its condition, its items, its command
    writes: tuple[str, ...]
    branches: dict[str, tuple[Box, ...]]
    task: str | None  # which it runs for each item


class Section(NamedTuple):
    """A list of steps that no other step contains: the workflow's, those of a task, those for errors."""

    title: str
    boxes: tuple[Box, ...]
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of a drawing. `fields`: the paths that each computed field is computed from, in that order."""

    title: str
    description: str
    sections: tuple[Section, ...]
    fields: dict[str, tuple[str, ...]]


def picture(definition: Definition) -> Picture:
    """The content of the drawing of a definition, the tasks that it imports included."""
    workflow = definition.workflow
    sections = [Section("steps", _boxes(workflow.steps))]
    for name, task in definition.tasks.items():
        sections.append(Section(f"task {name}", _boxes(task.steps), name))
        sections.append(Section(f"task {name}: on error", _boxes(task.error_handling.cleanup_on_error)))
    sections.append(Section("on failure", _boxes(workflow.error_handling.on_failure)))
    computed = {name: field.sources for name, field in workflow.state_schema.computed.items()}
    try:
        order = list(Graph(computed).order)
    except DependencyError:  # the drawing shows the cycle
        order = list(computed)
    fields = {f"computed.{name}": tuple(dict.fromkeys(map(_field, computed[name]))) for name in order}
    drawn = tuple(section for section in sections if section.boxes)
    return Picture(one_line(definition.name), one_line(workflow.description, 100), drawn, fields)


def _field(source: str) -> str:
    """The field that a path leads into."""
    try:
        return one_line(show(parse(source)[:2]))
    except PathError:
        return one_line(source)


_KINDS = {"conditional": "choice", "while": "loop", "foreach": "loop", "parallel_foreach": "parallel"}
_KINDS |= {"include_workflow": "include", "exit": "end", "break": "break", "continue": "continue"}
_BRANCH_WORDS = {"then": "yes", "else": "no", "body": "each", "steps": "each"}


def _boxes(steps: Steps | None) -> tuple[Box, ...]:
    return tuple(map(_box, steps or ()))


def _box(step: Step) -> Box:
    has_id = "." not in step.id  # else the id is the step's position
    return Box(
        step_id=step.id,
        kind=_KINDS.get(step.type, "step"),
        title=step.id if has_id else step.type,
        note=step.type if has_id else "",
        detail=one_line(_detail(step)),
        writes=tuple(dict.fromkeys(map(one_line, _written_paths(step)))),
        branches={_BRANCH_WORDS[key]: _boxes(children) for key, children in branches(step).items()},
        task=step.sub_agent_task if isinstance(step, step_types.ParallelForEach) else None,
    )


def _detail(step: Step) -> str:
    match step:
        case step_types.Conditional() | step_types.While():
            return bare(str(step.condition))
        case step_types.ForEach() | step_types.ParallelForEach():
            return f"item of {bare(str(step.items))}"
        case step_types.IncludeWorkflow():
            return step.workflow
        case step_types.ShellCommand():
            return step.command if isinstance(step.command, str) else " ".join(step.command)
        case step_types.UserMessage() | step_types.Exit():
            return step.message
        case step_types.AgentStep():
            return step.description or (f"prompt {step.prompt_name}" if step.prompt_name else str(step.prompt))
        case step_types.Wait():
            return f"until {bare(str(step.until))}" if step.until is not None else ""
    return step.description


def _written_paths(step: Step) -> Iterator[str]:
    if isinstance(step, step_types.StateUpdate):
        yield from (update.path for update in step.writes)
    if isinstance(step, step_types.Working) and step.state_update is not None:
        yield step.state_update.path
    if isinstance(step, step_types.Fallible) and step.error_state_update is not None:
        yield step.error_state_update.path
    if isinstance(step, step_types.ParallelForEach) and step.on_sub_agent_error.error_state_path is not None:
        yield step.on_sub_agent_error.error_state_path


# --- a tree of text

_Branch = tuple[str, list["_Branch"]]  # a label, and what is below it


def _ascii(picture: Picture) -> str:
    """A line for each step and each computed field."""
    lines = [picture.title + (f": {picture.description}" if picture.description else "")]
    for section in picture.sections:
        lines += ["", section.title, *_tree([_branch(box) for box in section.boxes])]
    if picture.fields:
        width = max(map(len, picture.fields))
        fields: list[_Branch] = [
            (f"{name:<{width}} <- {', '.join(sources)}", []) for name, sources in picture.fields.items()
        ]
        lines += ["", "data", *_tree(fields)]
    return "\n".join(lines) + "\n"


def _branch(box: Box) -> _Branch:
    is_choice = box.kind == "choice"
    note = f"({box.note})" if box.note else ""
    task = "" if box.task is None else f"=> task {box.task}, for each"
    detail = f"{box.detail}?" if box.detail and is_choice else box.detail
    writes = f"-> {', '.join(box.writes)}" if box.writes else ""
    inside: list[_Branch] = [(f"{word}:", list(map(_branch, boxes))) for word, boxes in box.branches.items()]
    if not is_choice:
        inside = [each for _, boxes in inside for each in boxes]
    return " ".join(filter(None, (box.title, note, task, detail, writes))), inside


def _tree(entries: Sequence[_Branch], indent: str = "") -> Iterator[str]:
    for index, (label, inside) in enumerate(entries):
        last = index == len(entries) - 1
        yield indent + ("`- " if last else "|- ") + label
        yield from _tree(inside, indent + ("   " if last else "|  "))


# --- nodes and edges, for Mermaid and Graphviz, which compute the layout themselves

# How each kind of node is written in Mermaid, and in Graphviz.
_NODES = {
    "start": ('(["%s"])', "shape=oval"),
    "end": ('(["%s"])', "shape=oval"),
    "step": ('["%s"]', "shape=box"),
    "choice": ('{"%s"}', "shape=diamond"),
    "loop": ('{{"%s"}}', "shape=hexagon"),
    "parallel": ('[["%s"]]', "shape=box3d"),
    "include": ('[["%s"]]', "shape=box, peripheries=2"),
    "break": ('>"%s"]', "shape=cds"),
    "continue": ('>"%s"]', "shape=cds"),
    "raw": ('[("%s")]', "shape=cylinder"),
    "computed": ('("%s")', 'shape=box, style="rounded"'),
}
_MERMAID_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:-_/=()[]+*!?'→…")
_Node = tuple[str, Sequence[str], str]  # its name, the lines of its label, its kind
_Edge = tuple[str, str, str, bool]  # from a node to a node, the word on it, whether it is dotted: it starts a task
_Exit = tuple[str, str]  # where the flow leaves: a node, and the word on the edge
_Loop = tuple[str, list[_Exit]]  # the node of a loop, and the `break`s inside it


class _Chart:
    """A picture as groups of nodes, with edges between any of them."""

    def __init__(self, picture: Picture) -> None:
        self.groups: list[tuple[str, list[_Node]]] = []
        self.edges: list[_Edge] = []
        self._count = 0
        self._task_starts: list[tuple[str, str]] = []  # a node, and the task that it starts
        first: dict[str | None, str] = {}  # the first node of each task
        for section in picture.sections:
            self.groups.append((section.title, []))
            start = first[section.task] = self._node(("start",), "start")
            exits = self._sequence(section.boxes, [(start, "")], None)
            if exits:
                self._join(exits, self._node(("end",), "end"))
        starts = [(node, first[task]) for node, task in self._task_starts if task in first]
        self.edges += [(node, start, "for each item", True) for node, start in starts]
        if picture.fields:
            self.groups.append(("data", []))
            nodes = {name: self._node((name,), "computed") for name in picture.fields}
            for name, sources in picture.fields.items():
                for source in sources:
                    if source not in nodes:
                        nodes[source] = self._node((source,), "raw")
                    self._join([(nodes[source], "")], nodes[name])

    def _node(self, lines: Sequence[str], kind: str) -> str:
        name = f"n{self._count}"
        self._count += 1
        self.groups[-1][1].append((name, lines, kind))
        return name

    def _join(self, exits: Sequence[_Exit], target: str) -> None:
        self.edges += [(source, target, word, False) for source, word in exits]

    def _sequence(self, boxes: Sequence[Box], exits: list[_Exit], loop: _Loop | None) -> list[_Exit]:
        """Add steps behind some exits; the exits of the last step. `loop` is the loop around them."""
        for box in boxes:
            title = f"{box.title} ({box.note})" if box.note else box.title
            writes = f"→ {', '.join(box.writes)}" if box.writes else ""
            node = self._node([line for line in (title, box.detail, writes) if line], box.kind)
            self._join(exits, node)
            exits = self._exits(box, node, loop)
        return exits

    def _exits(self, box: Box, node: str, loop: _Loop | None) -> list[_Exit]:
        if box.task is not None:
            self._task_starts.append((node, box.task))
        if box.kind == "choice":
            lists = [(word, box.branches.get(word, ())) for word in ("yes", "no")]
            return [one for word, boxes in lists for one in self._sequence(boxes, [(node, word)], loop)]
        if box.kind == "loop":
            breaks: list[_Exit] = []
            for word, boxes in box.branches.items():
                self._join(self._sequence(boxes, [(node, word)], (node, breaks)), node)
            return [(node, "done"), *breaks]
        if box.kind == "break" and loop is not None:
            loop[1].append((node, ""))
            return []
        if box.kind == "continue" and loop is not None:
            self._join([(node, "")], loop[0])
            return []
        return [] if box.kind == "end" else [(node, "")]


def _mermaid(picture: Picture) -> str:
    """A flow chart for Mermaid, which many viewers of Markdown draw."""
    chart = _Chart(picture)
    lines = ["---", f"title: {_quoted(picture.title)}", "---", "flowchart TD"]
    for number, (title, nodes) in enumerate(chart.groups):
        lines.append(f'  subgraph g{number}["{_entities(title)}"]')
        lines += [f"    {name}" + _NODES[kind][0] % "<br/>".join(map(_entities, label)) for name, label, kind in nodes]
        lines.append("  end")
    for source, target, word, is_dotted in chart.edges:
        label = f'|"{_entities(word)}"|' if word else ""
        lines.append(f"  {source} {'-.->' if is_dotted else '-->'}{label} {target}")
    return "\n".join(lines) + "\n"


def _entities(text: str) -> str:
    """Mermaid has entities with a number sign, and reads quotes, HTML and Markdown inside labels."""
    return "".join(one if one in _MERMAID_PLAIN or ord(one) > 0x2FF else f"#{ord(one)};" for one in text)


def _dot(picture: Picture) -> str:
    """A graph for Graphviz."""
    chart = _Chart(picture)
    lines = [f"digraph {_quoted(picture.title)} {{", '  node [fontname="sans-serif", fontsize=11];']
    lines.append('  edge [fontname="sans-serif", fontsize=10];')
    for number, (title, nodes) in enumerate(chart.groups):
        lines += [f"  subgraph cluster_g{number} {{", f"    label={_quoted(title)};"]
        lines += [f"    {name} [label={_quoted(*label)}, {_NODES[kind][1]}];" for name, label, kind in nodes]
        lines.append("  }")
    for source, target, word, is_dotted in chart.edges:
        settings = ", ".join([f"label={_quoted(word)}"] * bool(word) + ["style=dashed"] * is_dotted)
        lines.append(f"  {source} -> {target}" + (f" [{settings}]" if settings else "") + ";")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(*lines: str) -> str:
    """One string. A backslash begins an escape there; in Graphviz `\\N` is the node's name."""
    return '"' + "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines) + '"'


# --- shapes with coordinates, and SVG

Shape = tuple[str, dict[str, str], str]  # an element of SVG: its tag, its attributes, its text
_SVG = Template(Path(__file__).with_name("drawing.svg").read_text(encoding="utf-8"))
_CHARACTER = 7.3  # the width of one, in a monospaced font of 12
_LINE = 16.0
_MARGIN = 24.0
_SECTION_GAP = 40.0
_STEP_GAP = 24.0  # room for the arrow
_BRANCH_GAP = 26.0
_PADDING = 12.0


class Drawing(NamedTuple):
    """Shapes in the order in which they are painted. The box of a step has its id as `data-step`; classes colour it."""

    width: float
    height: float
    shapes: list[Shape]


def drawing(picture: Picture) -> Drawing:
    """The sections beside each other, and the fields below them."""
    shapes = [_text(_MARGIN, _MARGIN + 12, picture.title, "title")]
    shapes.append(_text(_MARGIN, _MARGIN + 32, picture.description))
    width = max(_width([picture.title]) * 1.4, _width([picture.description])) + 2 * _MARGIN
    x, top, bottom = _MARGIN, _MARGIN + 60, _MARGIN + 60
    for section in picture.sections:
        block = _sequence(section.boxes)
        shapes.append(_text(x, top, section.title, "section"))
        axis, y = x + block.left, top + 30
        shapes.append(("circle", {"class": "end", "cx": f"{axis:.1f}", "cy": f"{y:.1f}", "r": "5"}, ""))
        shapes += [_line((axis, y + 5), (axis, y + 24)), *block.shapes(axis, y + 24)]
        y += 24 + block.height
        if block.has_exit:
            shapes += [_line((axis, y), (axis, y + 22)), _rect(axis - 16, y + 22, 32, 8, "end")]
            y += 30
        bottom = max(bottom, y)
        x += max(block.left + block.right, _width([section.title]) + 10) + _SECTION_GAP
    width = max(width, x - _SECTION_GAP + _MARGIN)
    if picture.fields:
        shapes.append(_text(_MARGIN, bottom + _SECTION_GAP, "data", "section"))
        fields = _fields(picture.fields, _MARGIN, bottom + _SECTION_GAP + 14)
        shapes += fields.shapes
        bottom += _SECTION_GAP + 14 + fields.height
        width = max(width, fields.width + 2 * _MARGIN)
    return Drawing(width, bottom + _MARGIN, shapes)


def _svg(picture: Picture) -> str:
    """A file that any browser shows."""
    width, height, shapes = drawing(picture)
    lines = []
    for tag, attributes, text in shapes:
        element = tag + "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
        lines.append(f"<{element}>{escape(text)}</{tag}>" if tag == "text" else f"<{element}/>")
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}"}
    return _SVG.substitute(size, title=escape(picture.title), shapes="\n".join(lines))


def _rect(x: float, y: float, width: float, height: float, style: str, *, radius: float = 4, step: str = "") -> Shape:
    size = {"width": f"{width:.1f}", "height": f"{height:.1f}", "rx": f"{radius:g}"}
    step_id = {"data-step": step} if step else {}
    return "rect", {"class": style, "x": f"{x:.1f}", "y": f"{y:.1f}", **size, **step_id}, ""


def _text(x: float, y: float, text: str, style: str = "", *, middle: bool = False) -> Shape:
    attributes = {"class": style} if style else {}
    attributes |= {"x": f"{x:.1f}", "y": f"{y:.1f}"} | ({"text-anchor": "middle"} if middle else {})
    return "text", attributes, text


def _points(points: Sequence[tuple[float, float]], separator: str = " ") -> str:
    return separator.join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(*points: tuple[float, float], arrow: bool = True) -> Shape:
    return _path("way", "M" + _points(points, " L"), arrow=arrow)


def _curve(x: float, y: float, to_x: float, to_y: float, *, arrow: bool) -> Shape:
    bend = max((to_x - x) / 2, 20)
    path = f"M{x:.1f},{y:.1f} C" + _points([(x + bend, y), (to_x - bend, to_y), (to_x, to_y)])
    return _path("data", path, arrow=arrow)


def _path(style: str, path: str, *, arrow: bool) -> Shape:
    return "path", {"class": style, "d": path} | ({"marker-end": "url(#arrow)"} if arrow else {}), ""


def _width(lines: Sequence[str]) -> float:
    """The width of the widest line. Some characters are two columns wide."""
    widths = [sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line) for line in lines]
    return max(widths, default=0) * _CHARACTER


# --- the layout of steps: a step's branches are drawn inside or below it, so that no two lines cross


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of the layout, with its room to the left and right of the axis along which the flow goes down."""

    left: float
    right: float
    height: float
    has_exit: bool  # whether the flow leaves it below
    shapes: Callable[[float, float], Iterator[Shape]]  # by the axis's x, and the upper end


def _sequence(boxes: Sequence[Box]) -> _Block:
    layouts = {"choice": _choice, "loop": _loop}
    blocks = [layouts.get(box.kind, _plain)(box) for box in boxes]

    def shapes(x: float, y: float) -> Iterator[Shape]:
        for index, block in enumerate(blocks):
            if index:
                if blocks[index - 1].has_exit:
                    yield _line((x, y), (x, y + _STEP_GAP))
                y += _STEP_GAP
            yield from block.shapes(x, y)
            y += block.height

    left = max((block.left for block in blocks), default=20)
    right = max((block.right for block in blocks), default=20)
    height = sum(block.height for block in blocks) + _STEP_GAP * max(len(blocks) - 1, 0)
    return _Block(left, right, height, all(block.has_exit for block in blocks), shapes)


def _label(box: Box) -> _Block:
    """The lines inside a step's box, with the room around them."""
    lines = [f"{box.title} · {box.note}" if box.note else box.title]
    if box.task is not None:
        lines.append(f"for each {box.detail}: task {box.task}")
    elif box.detail:
        lines.append(f"{box.detail}?" if box.kind == "choice" else box.detail)
    if box.writes:
        lines.append(f"→ {', '.join(box.writes)}")
    half = _width(lines) / 2 + _PADDING

    def shapes(x: float, y: float) -> Iterator[Shape]:
        for index, line in enumerate(lines):
            yield _text(x, y + _LINE * (index + 1), line, "" if index else "strong", middle=True)

    return _Block(half, half, _LINE * len(lines) + 10, has_exit=True, shapes=shapes)


def _plain(box: Box) -> _Block:
    label = _label(box)
    has_exit = box.kind not in ("end", "break", "continue")
    style = "box" if box.kind == "step" else box.kind if has_exit else "jump"
    frame = 4.0 if style in ("parallel", "include") else 0.0  # a second frame: it starts other steps

    def shapes(x: float, y: float) -> Iterator[Shape]:
        left, width, radius = x - label.left, 2 * label.left, 4 if has_exit else label.height / 2
        if frame:
            yield _rect(left - frame, y, width + 2 * frame, label.height + 2 * frame, style, step=box.step_id)
        yield _rect(left, y + frame, width, label.height, style, radius=radius, step=box.step_id)
        yield from label.shapes(x, y + frame)

    return _Block(label.left + 4, label.right + 4, label.height + 2 * frame, has_exit, shapes)


def _decision(box: Box) -> _Block:
    """A box with points to the left and to the right, for a step that decides."""
    label = _label(box)
    half = label.left + _PADDING

    def shapes(x: float, y: float) -> Iterator[Shape]:
        left, right, middle, bottom = x - half, x + half, y + label.height / 2, y + label.height
        upper, lower = [(left + 12, y), (right - 12, y)], [(right - 12, bottom), (left + 12, bottom)]
        points = _points([(left, middle), *upper, (right, middle), *lower])
        yield "polygon", {"class": box.kind, "points": points, "data-step": box.step_id}, ""
        yield from label.shapes(x, y)

    return _Block(half, half, label.height, has_exit=True, shapes=shapes)


def _choice(box: Box) -> _Block:
    head = _decision(box)
    yes, no = _sequence(box.branches.get("yes", ())), _sequence(box.branches.get("no", ()))
    offset = (yes.right + _BRANCH_GAP + no.left) / 2  # of each branch's axis: the step itself stands in the middle
    has_exit = yes.has_exit or no.has_exit
    height = head.height + _STEP_GAP + max(yes.height, no.height) + (_STEP_GAP / 2 if has_exit else 0)

    def shapes(x: float, y: float) -> Iterator[Shape]:
        yield from head.shapes(x, y)
        top, bottom = y + head.height + _STEP_GAP, y + height
        for word, branch, axis, word_x in (("yes", yes, x - offset, -24), ("no", no, x + offset, 6)):
            turn = [(x, y + head.height), (x, top - 14), (axis, top - 14), (axis, top)]
            yield _line(*turn, arrow=bool(box.branches.get(word)))
            yield _text(axis + word_x, top - 4, word, "word")
            yield from branch.shapes(axis, top)
            if branch.has_exit:
                yield _line((axis, top + branch.height), (axis, bottom), (x, bottom), arrow=False)

    return _Block(max(offset + yes.left, head.left), max(offset + no.right, head.right), height, has_exit, shapes)


def _loop(box: Box) -> _Block:
    head, body = _decision(box), _sequence([inner for boxes in box.branches.values() for inner in boxes])
    left, right = max(body.left + 34, head.left + _PADDING), max(body.right + 14, head.right + _PADDING)
    height = _PADDING + head.height + _STEP_GAP + body.height + 22

    def shapes(x: float, y: float) -> Iterator[Shape]:
        yield _rect(x - left, y, left + right, height, "frame", radius=8)
        yield from head.shapes(x, y + _PADDING)
        middle, below = y + _PADDING + head.height / 2, y + _PADDING + head.height
        top = below + _STEP_GAP
        yield _line((x, below), (x, top))
        yield from body.shapes(x, top)
        if body.has_exit:
            # Up again on the left, and into the side of the step that decides.
            bottom, back = top + body.height, x - left + 14
            yield _line((x, bottom), (x, bottom + 10), (back, bottom + 10), (back, middle), (x - head.left, middle))

    return _Block(left, right, height, has_exit=True, shapes=shapes)


# --- the layout of fields: each stands to the right of all that it is computed from

_Fields = Mapping[str, Sequence[str]]  # computed fields, and what each is computed from
_FIELD_HEIGHT, _ROW, _COLUMN_GAP, _FIELD_PADDING = 26.0, 38.0, 70.0, 10.0


def _fields(fields: _Fields, x: float, y: float) -> Drawing:
    """Fields in columns, with their upper left corner at a point."""
    columns, routes, bends = _columns(fields)
    height = max(map(len, columns)) * _ROW
    widths = [_width([name for name in column if name not in bends]) + 2 * _FIELD_PADDING for column in columns]
    places: dict[str, tuple[float, float, float]] = {}  # left, right, middle
    for column, width in zip(columns, widths, strict=True):
        first = y + (height - len(column) * _ROW) / 2
        for row, name in enumerate(column):
            room = width if name in bends else _width([name]) + 2 * _FIELD_PADDING
            places[name] = (x, x + room, first + row * _ROW + _FIELD_HEIGHT / 2)
        x += width + _COLUMN_GAP
    shapes: list[Shape] = []
    for start, end in (pair for route in routes for pair in pairwise(route)):
        (_, from_x, from_y), (to_x, past_x, to_y) = places[start], places[end]
        shapes.append(_curve(from_x, from_y, to_x, to_y, arrow=end not in bends))
        if end in bends:
            shapes.append(_curve(to_x, to_y, past_x, to_y, arrow=False))
    for name, (left, right, middle) in places.items():
        if name not in bends:
            style = "computed" if name.startswith("computed.") else "raw"
            shapes.append(_rect(left, middle - _FIELD_HEIGHT / 2, right - left, _FIELD_HEIGHT, style, radius=13))
            shapes.append(_text((left + right) / 2, middle + 4, name, middle=True))
    return Drawing(sum(widths) + _COLUMN_GAP * (len(columns) - 1), height, shapes)


def _columns(fields: _Fields) -> tuple[list[list[str]], list[list[str]], set[str]]:
    """Names in columns, near to what they are computed from; the routes between them; and which names are bends.

    A route past other columns has a row of its own there, its bend, so that no box stands on it.
    """
    depth: dict[str, int] = {}
    for name, sources in fields.items():  # in the order of computation: a source that is computed has its depth
        depth[name] = 1 + max((depth.get(source, 0) for source in sources), default=0)
    edges = [(source, name) for name, sources in fields.items() for source in sources]
    for source, name in edges:
        if source not in fields:  # just before its first reader
            depth[source] = min(depth.get(source, depth[name] - 1), depth[name] - 1)
    columns: list[list[str]] = [[] for _ in range(max(depth.values()) + 1)]
    for name, column in depth.items():
        columns[column].append(name)
    before: dict[str, list[str]] = {}
    routes: list[list[str]] = []
    bends: set[str] = set()
    for source, name in edges:
        passed = {f"{source}\n{name}\n{at}": at for at in range(depth[source] + 1, depth[name])}
        for bend, at in passed.items():
            columns[at].append(bend)
        bends.update(passed)
        routes.append([source, *passed, name])
        for start, end in pairwise(routes[-1]):
            before.setdefault(end, []).append(start)
    rows: dict[str, float] = {}

    def mean_row(name: str) -> float:
        near = [rows[one] for one in before.get(name, ()) if one in rows]
        return sum(near) / len(near) if near else 0.0

    for names in columns:
        names.sort(key=mean_row)
        rows.update({name: row - (len(names) - 1) / 2 for row, name in enumerate(names)})
    return columns, routes, bends


FORMATS: dict[str, Callable[[Picture], str]] = {"mermaid": _mermaid, "dot": _dot, "svg": _svg, "ascii": _ascii}
