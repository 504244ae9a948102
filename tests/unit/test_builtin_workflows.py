"""The built-in workflows: they are checked by an independent validator, and read as examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from sidecar.catalog import naming, workflows
from sidecar.model.language import Role
from sidecar.model.steps import IncludeWorkflow, ParallelForEach
from sidecar.model.workflow import ExpressionSite, json_schema

PATHS = sorted(Path(naming.builtin_directory("workflows")).glob("*.yaml"))
every_workflow = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@every_workflow
def test_it_is_valid_by_the_schema_and_by_the_models(path: Path) -> None:
    Draft202012Validator(json_schema()).validate(yaml.safe_load(path.read_text()))
    assert workflows.load("/", str(path)).workflow.steps


@every_workflow
def test_it_says_what_it_is_for_and_what_it_asks(path: Path) -> None:
    definition = workflows.load("/", str(path))
    assert definition.workflow.name == path.stem
    assert definition.workflow.version
    assert definition.workflow.description.endswith(".")
    assert all(parameter.description for parameter in definition.workflow.parameters)
    assert len(re.findall(r"^\s*# \w", path.read_text(), re.MULTILINE)) >= 2


@every_workflow
def test_its_tasks_and_includes_exist_and_none_is_left_over(path: Path, tmp_path: Path) -> None:
    definition = workflows.load("/", str(path))
    steps = {step.id: step for site in definition.sites() for step in site.steps}.values()
    used = {step.sub_agent_task for step in steps if isinstance(step, ParallelForEach)}
    assert used == set(definition.tasks)
    for step in steps:
        if isinstance(step, IncludeWorkflow):
            included = workflows.included(str(tmp_path), definition, step.workflow)
            assert set(step.inputs) <= set(included.workflow.inputs)


@every_workflow
def test_every_field_that_a_step_writes_is_declared(path: Path) -> None:
    definition = workflows.load("/", str(path))
    declared = set(definition.workflow.state_schema.raw)
    written = {_field(site) for site in definition.sites() if site.role is Role.PATH}
    assert written | set(definition.workflow.default_state.raw) <= declared


def _field(site: ExpressionSite) -> str:
    match = re.match(r"raw\.([A-Za-z_]+)", site.text)
    assert match, site.text
    return match.group(1)


@every_workflow
def test_only_what_the_caller_wrote_as_a_command_is_ever_code(path: Path) -> None:
    for site in workflows.load("/", str(path)).sites():
        for expression in re.findall(r"\{\{(.*?)\}\}", site.text):
            if re.search(r"\|\s*raw\s*$", expression):
                assert (site.role, expression.strip()) == (Role.COMMAND, "inputs.check_command | raw")
