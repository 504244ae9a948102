"""What is said of a workflow file that is wrong: everything, at once, where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.catalog import definition, naming, workflows, yaml_format
from sidecar.errors import DefinitionError, Problem
from sidecar.model.workflow import Workflow


def problems(text: str) -> list[Problem]:
    with pytest.raises(DefinitionError) as caught:
        definition.parse(yaml_format.parse(text, "f.yaml"))
    return list(caught.value.problems)


def told(text: str) -> list[str]:
    return [f"{problem.line}:{problem.column}: {problem.message}" for problem in problems(text)]


def test_every_problem_is_told_at_once_in_the_order_of_the_file_with_line_and_column() -> None:
    text = """\
name: x
verison: "1"
inputs:
  n: {type: integer, default: x, chioces: [1]}
steps:
  - {type: shel_command}
  - {on_error: fial, type: user_message, message: x}
  - type: agent
    agent: 5
  - type: while
    condition: "{{ x }}"
    body:
      - {type: state_update, path: computed.x, value: 1, id: twice}
      - type: wait
        timeout: 5 weeks
  - {type: exit, id: twice}
limits: {max_duration: soon}
"""
    assert told(text) == [
        "2:1: unknown key 'verison'; did you mean 'version'?",
        "4:22: `default` is not of type integer",
        "4:34: unknown key 'chioces'; did you mean 'choices'?",
        "6:5: unknown step type 'shel_command'; did you mean 'shell_command'?",
        "7:6: `on_error`: 'fial' is not 'fail', 'continue' or 'retry'; did you mean 'fail'?",
        "8:5: `prompt_name` is missing, and so is `prompt`: one of them is needed",
        "9:5: `agent` has to be text; put it in quotes",
        "13:30: `path`: 'computed.x' cannot be written: computed fields follow from others; write for example raw.x",
        "14:9: `until` is missing, and so is `duration`: one of them is needed",
        "15:9: `timeout`: '5 weeks' is not a duration: write milliseconds (1500) or a unit (30s, 5m, 2h, 1h30m)",
        "16:18: `id`: 'twice' is used by another step",
        "17:10: `max_duration`: 'soon' is not a duration: write milliseconds (1500) or a unit (30s, 5m, 2h, 1h30m)",
    ]


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("steps: [{type: shell_command, comand: x, command: y}]", "'command'"),
        ("steps: [{type: shell_command, command: y, state_update: {paht: raw.x, path: raw.y}}]", "'path'"),
        ("steps: [{type: mcp_call, mcp: {methd: x, method: y}}]", "'method'"),
        ("steps: [{type: while, condition: true, max_iteration: 3, body: []}]", "'max_iterations'"),
        ("steps: [{type: user_input, prompt: x, validation: {pattern: x, eror_message: y}}]", "'error_message'"),
        (
            "steps: [{type: parallel_foreach, items: [], sub_agent_task: t, on_sub_agent_error: {stratgy: x}}]",
            "'strategy'",
        ),
        ("steps: []\nstate_schema: {computed: {x: {from: raw.a, transform: input, fallbak: 1}}}", "'fallback'"),
        ("steps: []\nstate_schema: {rew: {}}", "'raw'"),
        ("sub_agent_tasks: {t: {step: [], steps: []}}", "'steps'"),
        ("sub_agent_tasks: {t: {steps: [], error_handling: {cleanup_on_errors: []}}}", "'cleanup_on_error'"),
        ("steps: []\nerror_handling: {on_failur: []}", "'on_failure'"),
        ("steps: []\nerror_handling: {error_collection: {state_paht: raw.x}}", "'state_path'"),
        ("steps: []\non_resume: {retry_failed_step: true}", "'retry_failed_steps'"),
        ("steps: []\nlimits: {max_iteration: 1}", "'max_iterations'"),
        ("steps: []\ndefault_state: {row: {}}", "'raw'"),
        ("steps: []\ninputs: {a: {typ: string}}", "'type'"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_that_its_place_knows(text: str, near: str) -> None:
    (problem,) = problems(text)
    assert "unknown key" in problem
    assert problem.endswith(f"did you mean {near}?")


def test_a_problem_is_a_line_for_people_and_its_parts_for_programs() -> None:
    (problem,) = problems("steps: []\nlimitz: {}\n")
    assert problem == "f.yaml:2: unknown key 'limitz'; did you mean 'limits'?"
    assert (problem.path, problem.line, problem.column) == ("f.yaml", 2, 1)
    (problem,) = problems("steps: [{type: break, zzz: 1}]")
    assert problem.message == "unknown key 'zzz'; available: description, id, type"


def test_a_key_without_a_value_is_told_where_it_stands() -> None:
    text = "steps:\n  - type: shell_command\n    command:\n    fallback_value:\n    timeout:\nlimits:\n"
    assert told(text) == ["3:5: `command` has no value", "5:5: `timeout` has no value", "6:1: `limits` has no value"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("steps: []\ndefault_state:\n  raw: {a: .inf}", "3:9"),
        ("steps: []\ndefault_state:\n  raw: {a: !!binary YQ==}", "3:9"),
        ("steps: []\ndefault_state:\n  raw: {a: !!set {x}}", "3:9"),
        ("steps: []\ndefault_state:\n  raw: {1: a}", "3:9"),
        ("steps: []\nyes: 1", "1:1"),
        ('steps: []\ndefault_state:\n  raw: {a: "\\uD800"}', "3:9"),
    ],
)
def test_what_json_cannot_say_has_no_place_in_a_workflow(text: str, place: str) -> None:
    (problem,) = told(text)
    assert problem.startswith(f"{place}: ")


@pytest.mark.parametrize("text", ["", "- type: exit", "just text", "workflow: 5", "workflow: []", "5", "null"])
def test_a_file_that_is_no_mapping_is_told_so(text: str) -> None:
    (problem,) = problems(text)
    assert "a workflow is a mapping" in problem


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("{{ x }}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = sorted(Path(naming.builtin_directory("workflows")).glob("*.yaml"))
BUILTIN = [yaml.safe_load(path.read_text()) for path in PATHS]


def places(value: Any, location: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [location, *(place for key, child in children for place in places(child, (*location, key)))]


def replaced(value: Any, location: tuple[Any, ...], new: Any) -> Any:
    if not location:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[location[0]] = replaced(value[location[0]], location[1:], new)
    return copy


@settings(max_examples=200)
@given(st.data(), JSON)
def test_a_workflow_with_anything_anywhere_is_a_workflow_or_has_problems_with_places(data: Any, new: Any) -> None:
    value = data.draw(st.sampled_from(BUILTIN))
    changed = replaced(value, data.draw(st.sampled_from(places(value))), new)
    text = yaml.safe_dump(changed, allow_unicode=False)
    lines = text.count("\n") + 1
    try:
        document = yaml_format.parse(text, "f.yaml")
        assert isinstance(definition.parse(document), Workflow)
        return
    except DefinitionError as error:
        found = error.problems
    assert found
    assert all(1 <= problem.line <= lines and problem.column >= 1 for problem in found)


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_whatever_the_bytes_the_loader_says_what_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    try:
        workflows.load("/", str(path))
        return
    except DefinitionError as error:
        found = error.problems
    assert found
    assert all(problem.startswith(f"{path}:") for problem in found)
