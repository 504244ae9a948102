"""Pictures of workflows: what is in them, and that no name can break one."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from sidecar.analysis.drawing import FORMATS, Picture, drawing, picture
from sidecar.catalog import listing, workflows

WORKFLOW = """\
description: For the tests.
state_schema:
  raw: {files: array, limit: integer}
  computed:
    chosen: {from: [raw.files, raw.limit], transform: input}
    count: {from: computed.chosen.length, transform: input}
steps:
  - {id: list, type: shell_command, command: git ls-files, state_update: {path: raw.files}}
  - id: each
    type: foreach
    items: "{{ chosen }}"
    body:
      - id: skip
        type: conditional
        condition: "{{ item === '' }}"
        then: [{id: next, type: continue}]
        else: [{id: leave, type: break}]
  - id: enough
    type: conditional
    condition: "{{ count > 3 }}"
    then: [{id: out, type: exit}]
  - {id: fan, type: parallel_foreach, items: "{{ chosen }}", sub_agent_task: look}
sub_agent_tasks:
  look: {steps: [{id: read, type: agent, prompt: Read it.}]}
error_handling:
  on_failure: [{type: user_message, message: Sorry.}]
"""


def load(directory: Path, text: str) -> Picture:
    path = directory / "w.yaml"
    path.write_text(text)
    return picture(workflows.load("/", str(path)))


def edges(drawn: Picture) -> set[tuple[str, str, str]]:
    """The edges of a chart, by the first words of what they connect."""
    chart = FORMATS["mermaid"](drawn)
    names = dict(re.findall(r'^    (n\d+)\W+"([\w.]+)', chart, re.MULTILINE))
    found = re.findall(r'^  (n\d+) -\.?->(?:\|"([^"]*)"\|)? (n\d+)$', chart, re.MULTILINE)
    return {(names[source], word, names[target]) for source, word, target in found}


def test_the_flow_goes_through_branches_loops_jumps_and_tasks(tmp_path: Path) -> None:
    assert edges(load(tmp_path, WORKFLOW)) == {
        ("start", "", "list"),
        ("list", "", "each"),
        ("each", "each", "skip"),
        ("skip", "yes", "next"),
        ("skip", "no", "leave"),
        ("next", "", "each"),
        ("each", "done", "enough"),
        ("leave", "", "enough"),
        ("enough", "yes", "out"),
        ("enough", "no", "fan"),
        ("fan", "", "end"),
        ("fan", "for each item", "start"),
        ("start", "", "read"),
        ("read", "", "end"),
        ("start", "", "user_message"),
        ("user_message", "", "end"),
        ("raw.files", "", "computed.chosen"),
        ("raw.limit", "", "computed.chosen"),
        ("computed.chosen", "", "computed.count"),
    }


def test_ascii_is_a_tree_with_what_each_step_does(tmp_path: Path) -> None:
    assert (
        FORMATS["ascii"](load(tmp_path, WORKFLOW))
        == """\
w: For the tests.

steps
|- list (shell_command) git ls-files -> raw.files
|- each (foreach) item of chosen
|  `- skip (conditional) item === ''?
|     |- yes:
|     |  `- next (continue)
|     `- no:
|        `- leave (break)
|- enough (conditional) count > 3?
|  `- yes:
|     `- out (exit)
`- fan (parallel_foreach) => task look, for each item of chosen

task look
`- read (agent) Read it.

on failure
`- user_message Sorry.

data
|- computed.chosen <- raw.files, raw.limit
`- computed.count  <- computed.chosen
"""
    )


HOSTILE = "a \"b\" 'c' <script>&amp; ]] }} -->|x| `d` #quot; \\n \\ %% ; {{ 1 }} ü 漢"


def test_what_a_workflow_says_is_escaped_in_every_format(tmp_path: Path) -> None:
    quoted = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
    hostile = load(tmp_path, f'steps: [{{type: user_message, message: "{quoted}"}}]\n')
    root = ElementTree.fromstring(FORMATS["svg"](hostile))
    assert HOSTILE[:59] in [(node.text or "")[:59] for node in root.iter("{http://www.w3.org/2000/svg}text")]
    mermaid, dot = (
        next(line for line in FORMATS[name](hostile).splitlines() if "user_message" in line)
        for name in ("mermaid", "dot")
    )
    label = re.fullmatch(r'    n1\["user_message<br/>([^"<>`{}|\\]*)"\]', mermaid)
    assert label
    assert re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label[1]).startswith(HOSTILE[:50])
    label = re.fullmatch(r'    n1 \[label="((?:[^"\\]|\\.)*)", shape=box\];', dot)
    assert label
    assert re.sub(r"\\(.)", r"\1", label[1].partition("\\n")[2]).startswith(HOSTILE[:50])


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_that_a_terminal_would_obey_is_ever_drawn(tmp_path: Path, name: str) -> None:
    text = 'description: "\\e]0;x\\a"\nsteps: [{type: user_message, message: "a\\e[31m\\u202eb"}]\n'
    drawn = FORMATS[name](load(tmp_path, text))
    assert "a[31mb" in drawn or "a#91;31mb" in drawn
    assert all(character.isprintable() or character == "\n" for character in drawn)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("row", listing.workflows("/nonexistent", "builtin")[0], ids=lambda row: row["name"])
def test_every_built_in_workflow_can_be_drawn(row: listing.Row, name: str) -> None:
    drawn = picture(workflows.load("/", row["path"]))
    text = FORMATS[name](drawn)
    for section in drawn.sections:
        assert all(box.title in text for box in section.boxes)
    if name == "svg":
        ElementTree.fromstring(text)


def test_fields_stand_to_the_right_of_what_they_follow_from(tmp_path: Path) -> None:
    computed = "a: {from: raw.x, transform: input}, b: {from: computed.a, transform: input}"
    computed += ", c: {from: [computed.b, raw.x, raw.late], transform: input}"
    found = drawing(load(tmp_path, f"state_schema: {{computed: {{{computed}}}}}\nsteps: [{{type: exit}}]\n"))
    boxes = [shape for tag, shape, _ in found.shapes if tag == "rect" and shape["class"] in ("raw", "computed")]
    names = [text for tag, _, text in found.shapes if tag == "text" and text.startswith(("raw.", "computed."))]
    columns: dict[float, list[str]] = {}
    for shape, name in sorted(zip(boxes, names, strict=True), key=lambda one: (float(one[0]["x"]), one[1])):
        columns.setdefault(float(shape["x"]), []).append(name)
    assert list(columns.values()) == [["raw.x"], ["computed.a"], ["computed.b", "raw.late"], ["computed.c"]]
    # The way from x to c goes past two columns, with a row of its own in each: no box is drawn over it.
    curves = [shape["d"] for tag, shape, _ in found.shapes if tag == "path" and shape["class"] == "data"]
    rows = {float(shape["y"]) + 13 for shape in boxes}
    ends = [float(curve.rpartition(",")[2]) for curve in curves]
    assert sum(end not in rows for end in ends) == 4


def test_every_step_can_be_found_in_the_shapes_by_its_id(tmp_path: Path) -> None:
    drawn = load(tmp_path, WORKFLOW)
    found = drawing(drawn)
    ids = {"list", "each", "skip", "next", "leave", "enough", "out", "fan", "read", "on_failure.0.user_message"}
    assert {shape["data-step"] for _, shape, _ in found.shapes if "data-step" in shape} == ids
    root = ElementTree.fromstring(FORMATS["svg"](drawn))
    assert {one.attrib["data-step"] for one in root.iter() if "data-step" in one.attrib} == ids
    written = [one for one in root if "class" in one.attrib or one.tag.endswith("}text")]
    assert [(one.tag.rpartition("}")[2], one.attrib, one.text or "") for one in written] == found.shapes


def test_steps_and_boxes_of_an_svg_do_not_lie_over_each_other(tmp_path: Path) -> None:
    root = ElementTree.fromstring(FORMATS["svg"](load(tmp_path, WORKFLOW)))
    boxes = [
        [float(shape.attrib[key]) for key in ("x", "y", "width", "height")]
        for shape in root.iter("{http://www.w3.org/2000/svg}rect")
        if shape.get("class") in ("box", "jump", "raw", "computed")
    ]
    assert len(boxes) == 10
    for index, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:index]:
            apart = x >= other_x + other_width or other_x >= x + width
            assert apart or y >= other_y + other_height or other_y >= y + height


def test_fields_in_a_circle_can_be_drawn_all_the_same(tmp_path: Path) -> None:
    text = (
        "state_schema: {computed: {a: {from: computed.b, transform: input}, b: {from: computed.a, transform: input}}}"
    )
    drawn = load(tmp_path, f"{text}\nsteps: [{{type: exit}}]\n")
    assert list(drawn.fields) == ["computed.a", "computed.b"]
    for draw in FORMATS.values():
        assert "computed.b" in draw(drawn)
