"""Whole workflows: the keys at the top, and every definition of the language's first description."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.catalog import definition, yaml_format
from sidecar.errors import DefinitionError, InputError
from sidecar.model.parameters import bind
from sidecar.model.workflow import Workflow

SEED = Path(__file__).parent / "seed_004"
STEPS = "steps:\n  - type: exit\n"

# How a fragment becomes a whole definition, and the places where its author left something out, as `line: what`.
FRAGMENTS: dict[str, tuple[str, list[str]]] = {
    "basic_structure": ("whole", ["81: `mcp` is missing"]),
    "state_features": ("mapping", []),
    "step_types": (
        "steps",
        ["54: `mcp` is missing", "57: `mcp` is missing", "73: `command` is missing"],
    ),
    "shared_component": ("whole", []),
    "main_workflow": ("whole", []),
    "reading_and_writing": ("steps", ["3: `then` is missing"]),
    "default_state": ("mapping", []),
    "state_updates": ("steps", []),
    "step_errors": ("steps", []),
    "computed_errors": ("schema", []),
    "sub_agent_errors": ("steps", []),
    "task_errors": ("mapping", ["3: `steps` is missing"]),
    "workflow_errors": ("mapping", []),
    "transform_errors": ("mapping", []),
    "error_tracking": ("mapping", []),
}


def parse(text: str) -> Workflow:
    return definition.parse(yaml_format.parse(text, "f.yaml"))


def made_whole(name: str, how: str) -> str:
    """A fragment as a definition of its own; its lines keep their numbers where that is possible."""
    text = (SEED / f"{name}.yaml").read_text()
    if how == "steps":
        return "steps:\n" + text
    if how == "schema":
        return STEPS + "state_schema:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    return text + STEPS if how == "mapping" else text


def test_every_fragment_is_looked_at() -> None:
    assert {path.stem for path in SEED.glob("*.yaml")} == {*FRAGMENTS, "not_taken"}


@pytest.mark.parametrize("name", [path.stem for path in sorted(SEED.glob("*.yaml"))])
def test_every_fragment_of_the_seed_is_yaml(name: str) -> None:
    assert yaml_format.load(str(SEED / f"{name}.yaml")).value


@pytest.mark.parametrize("name", FRAGMENTS)
def test_every_definition_of_the_seed_is_a_workflow_but_for_what_it_leaves_out(name: str) -> None:
    how, left_out = FRAGMENTS[name]
    text = made_whole(name, how)
    if not left_out:
        assert parse(text).steps
        return
    with pytest.raises(DefinitionError) as caught:
        parse(text)
    assert [problem.removeprefix("f.yaml:") for problem in caught.value.problems] == left_out


def test_what_was_not_taken_from_the_seed_is_refused_with_what_serves_instead() -> None:
    with pytest.raises(DefinitionError) as caught:
        parse(made_whole("not_taken", "mapping"))
    problems = caught.value.problems
    assert [problem.message.split(" ", 1)[0] for problem in problems] == [
        "'orchestrator_behavior'",
        "'on_high_context_usage'",
        "'load_from_checkpoint'",
        "'exclude'",
    ]
    assert all("is not part of the language: " in problem for problem in problems)


def test_inputs_are_parameters_in_the_order_of_the_file() -> None:
    parsed = parse(
        "inputs:\n"
        "  zeta: {required: true, description: first}\n"
        "  alpha: {type: integer, default: 3, choices: [1, 3]}\n"
        "  maybe: {type: object, required: false}\n" + STEPS
    )
    assert [(p.name, p.type, p.is_required) for p in parsed.parameters] == [
        ("zeta", "string", True),
        ("alpha", "integer", False),
        ("maybe", "object", False),
    ]
    assert bind(parsed.parameters, {"zeta": "z"}, "w") == {"zeta": "z", "alpha": 3, "maybe": None}
    with pytest.raises(InputError, match="parameter 'alpha' has to be one of 1, 3"):
        bind(parsed.parameters, {"zeta": "z", "alpha": 2}, "w")


def test_the_wrapper_changes_nothing_but_the_places() -> None:
    wrapped = "workflow:\n  name: x\n  steps:\n    - type: exit\n"
    assert parse(wrapped) == parse("name: x\n" + STEPS)
    with pytest.raises(DefinitionError, match=r"^f.yaml:3: unknown key 'naem'; did you mean 'name'\?$"):
        parse("workflow:\n  steps: []\n  naem: x\n")


def test_a_component_may_have_only_tasks() -> None:
    assert parse("sub_agent_tasks: {t: {steps: [{type: exit}]}}").steps is None
