"""The step types: what each takes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from sidecar.catalog import definition, yaml_format
from sidecar.errors import DefinitionError
from sidecar.model.steps import (
    STEP_CLASSES,
    ForEach,
    ShellCommand,
    StateUpdate,
    Update,
    While,
    branches,
)
from sidecar.model.workflow import Workflow, json_schema

HERE = Path(__file__).parent
WRONG: list[dict[str, Any]] = yaml.safe_load((HERE / "wrong_workflows.yaml").read_text())
FULL: list[dict[str, Any]] = yaml.safe_load((HERE / "full_steps.yaml").read_text())
SCHEMA = Draft202012Validator(json_schema())


def workflow(*steps: dict[str, Any]) -> Workflow:
    return Workflow.model_validate({"steps": list(steps)})


def step(**given: Any) -> Any:
    (parsed,) = workflow(given).steps or ()
    return parsed


def test_every_step_type_takes_every_key_that_it_has() -> None:
    parsed = workflow(*FULL).steps or ()
    given: dict[type, set[str]] = {}
    for each in _all(parsed):
        given.setdefault(type(each), set()).update(each.model_fields_set)
    assert {cls: set(cls.model_fields) for cls in STEP_CLASSES.values()} == given
    SCHEMA.validate({"steps": FULL})


def _all(steps: tuple[Any, ...]) -> list[Any]:
    return [each for step in steps for each in (step, *_all(tuple(s for b in branches(step).values() for s in b)))]


@pytest.mark.parametrize("example", WRONG, ids=[example["why"] for example in WRONG])
def test_what_is_wrong_is_refused(example: dict[str, Any]) -> None:
    value = example.get("definition") or {"steps": example["steps"]}
    document = yaml_format.parse(yaml.safe_dump(value), "f.yaml")
    with pytest.raises(DefinitionError) as caught:
        definition.parse(document)
    assert all(": " in problem and "\n" not in problem for problem in caught.value.problems)


@pytest.mark.parametrize("example", WRONG, ids=[example["why"] for example in WRONG])
def test_the_schema_refuses_it_too_unless_that_is_beyond_json_schema(example: dict[str, Any]) -> None:
    value = example.get("definition") or {"steps": example["steps"]}
    assert SCHEMA.is_valid(value) is example.get("only_models", False)


def test_durations_are_milliseconds_or_say_their_unit_and_templates_wait_for_the_run() -> None:
    def timeout_of(value: object) -> object:
        return step(type="shell_command", command="x", timeout=value).timeout_s

    assert (timeout_of(300000), timeout_of("5m"), timeout_of("1500")) == (300.0, 300.0, 1.5)
    assert timeout_of("{{ inputs.t }}") == "{{ inputs.t }}"


def test_what_nobody_says_has_a_default() -> None:
    shell = step(type="shell_command", command="x")
    assert isinstance(shell, ShellCommand)
    assert (shell.on_error, shell.output_format, shell.timeout_s, shell.has_fallback) == ("fail", "text", None, False)
    loop = step(type="while", condition="{{ x }}", body=[])
    assert isinstance(loop, While)
    assert loop.max_iterations == 100
    parallel = step(type="parallel_foreach", items=[], sub_agent_task="t")
    assert (parallel.wait_for_all, parallel.on_sub_agent_error.strategy) == (True, "fail_all")
    assert step(type="exit").status == "success"


def test_null_is_a_value_and_absence_is_not() -> None:
    assert Update(path="raw.x", value=None).has_value
    assert not Update(path="raw.x").has_value
    assert step(type="shell_command", command="x", fallback_value=None).has_fallback


def test_a_state_update_has_its_writes_however_they_are_spelled() -> None:
    one = step(type="state_update", path="raw.n", operation="increment")
    two = step(type="state_update", updates=[{"path": "raw.a", "value": None}, {"path": "state.b", "value": 1}])
    assert isinstance(one, StateUpdate)
    assert isinstance(two, StateUpdate)
    assert [(w.path, w.operation, w.has_value) for w in one.writes] == [("raw.n", "increment", False)]
    assert [(w.path, w.value, w.has_value) for w in two.writes] == [("raw.a", None, True), ("state.b", 1, True)]


def test_a_loop_may_call_its_steps_body_or_steps() -> None:
    for key in ("body", "steps"):
        loop = step(type="foreach", items=[1], **{key: [{"type": "exit"}]})
        assert isinstance(loop, ForEach)
        assert [inner.type for inner in loop.inner] == ["exit"]
        assert list(branches(loop)) == [key]


def test_a_default_that_is_a_choice_or_a_template_is_taken() -> None:
    assert step(type="user_input", prompt="x", choices=["a", "b"], default="b").default == "b"
    assert step(type="user_input", prompt="x", choices=["a", "b"], default="{{ c }}").default == "{{ c }}"


def test_a_limit_that_is_none_is_refused_in_our_words() -> None:
    document = yaml_format.parse("steps: []\nlimits: {max_cost_usd: -1}\n", "f.yaml")
    with pytest.raises(DefinitionError) as caught:
        definition.parse(document)
    assert str(caught.value.problems[0]) == "f.yaml:2: `max_cost_usd` has to be greater than 0, not -1"
