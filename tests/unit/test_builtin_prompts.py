"""The built-in prompts: they say what they are for, and name only tools that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sidecar.catalog import prompts
from sidecar.model.parameters import template_names
from sidecar.model.steps import STEP_CLASSES

NAMES = ("abort", "orchestrator", "sub-agent")
# The contract's names: what an agent is told to call has to be there.
TOOLS = {
    "abort", "stop", "flow", "agent", "prompt", "stage_gate", "workflow_get_info", "workflow_start",
    "workflow_get_next_step", "workflow_step_complete", "workflow_resume", "workflow_load_definition",
    "workflow_checkpoint", "workflow_complete", "workflow_list", "workflow_status", "workflow_state_read",
    "workflow_state_update", "workflow_state_dependencies",
}  # fmt: skip
every_prompt = pytest.mark.parametrize("name", NAMES)


def test_those_that_are_promised_are_built_in(tmp_path: Path) -> None:
    found, problems = prompts.listing(str(tmp_path))
    assert not problems
    assert {prompt.name: prompt.source for prompt in found} == dict.fromkeys(NAMES, "builtin")


@every_prompt
def test_it_says_what_it_is_for_and_what_it_asks(tmp_path: Path, name: str) -> None:
    prompt = prompts.find(str(tmp_path), name)
    assert prompt.title
    assert prompt.description.endswith(".")
    assert all(parameter.description for parameter in prompt.parameters)
    assert {parameter.name for parameter in prompt.parameters} == set(template_names(prompt.body))


@every_prompt
def test_every_tool_that_it_names_is_one(tmp_path: Path, name: str) -> None:
    body = prompts.find(str(tmp_path), name).body
    named = set(re.findall(r"`(workflow_[a-z_]+)`", body)) | set(re.findall(r"(?:[Cc]all|tool) `([a-z_]+)`", body))
    assert named - {"workflow_id"} <= TOOLS
    assert "abort" in named
    assert not re.search(r"workflow\.[a-z]", body)


@every_prompt
def test_an_abort_names_the_run(tmp_path: Path, name: str) -> None:
    """An agent that drives a run is an agent of none: without a run, the call would mean the whole project."""
    body = prompts.find(str(tmp_path), name).body
    asked = [passage for passage in re.split(r"\n(?=- |\n)", body) if re.search(r"(?:call|tool) `abort`", passage)]
    assert asked
    assert all("`workflow_id`" in passage and "`run_id`" in passage for passage in asked)


def test_an_orchestrator_is_told_of_every_step_that_can_be_handed_out(tmp_path: Path) -> None:
    body = prompts.find(str(tmp_path), "orchestrator").body
    told = set(re.findall(r"^- `([a-z_]+)`:", body, re.MULTILINE))
    assert told == {"agent", "agent_shell_command", "apply_hints", "mcp_call", "parallel_tasks"} | {
        "user_input",
        "user_message",
    }
    assert told - {"parallel_tasks"} <= set(STEP_CLASSES)
