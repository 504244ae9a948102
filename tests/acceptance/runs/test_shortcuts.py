"""Workflows, agents and prompts as commands: `flow`, `agent`, `prompt`, and the bare name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from tests.kit import Project

ECHO = {"type": "shell_command", "command": "echo {{ inputs.word }} > said"}
WORD = {"word": {"type": "string", "required": True, "description": "What to say."}}


def prompt(flows: Project, name: str, text: str) -> None:
    path = flows.state / "prompts" / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("command", [["say"], ["flow", "say"], ["flow", "run", "say"]])
def test_a_workflow_runs_by_its_bare_name_as_by_the_long_one(flows: Project, command: list[str]) -> None:
    flows.workflow("say", ECHO, inputs=WORD)
    assert flows.run(*command, "hello", "-q")[0] == 0
    assert flows.lines("said") == ["hello"]


def test_a_workflow_called_like_a_command_runs_with_an_underscore(flows: Project) -> None:
    flows.workflow("list", ECHO, inputs=WORD, description="Not the list of workflows.")
    code, out, _ = flows.run("--help")
    assert code == 0
    assert "_list " in out
    assert "Not the list of workflows. (shortcut for 'flow run list')" in out
    assert flows.run("_list", "hello", "-q")[0] == 0
    assert flows.lines("said") == ["hello"]


def test_help_of_a_shortcut_is_the_help_of_that_workflow(flows: Project) -> None:
    inputs = WORD | {"loud": {"type": "boolean", "default": False}}
    step = ECHO | {"id": "speak", "description": "Say it"}
    message = {"type": "user_message", "id": "tell", "message": "x"}
    flows.workflow("say", step, message, inputs=inputs, description="Says.")
    code, out, _ = flows.run("say", "--help")
    assert code == 0
    for expected in (
        "usage: sidecar flow run say WORD [-p loud=BOOLEAN]",
        "Says.",
        "word (string, required)",
        "What to say.",
        "loud (boolean, default false)",
        "speak: shell_command Say it",
        "tell: user_message",
        "example: sidecar flow run say VALUE",
    ):
        assert expected in " ".join(out.split()), expected


def test_what_nobody_knows_is_refused_with_the_nearest_name(flows: Project) -> None:
    flows.workflow("deploy", ECHO, inputs=WORD)
    code, _, err = flows.run("deplyo")
    assert code == 2
    assert err.startswith("sidecar: unknown command 'deplyo'; did you mean 'deploy'")
    assert err.count("\n") == 1


def test_a_prompt_goes_to_the_default_agent_or_the_one_that_is_named(flows: Project) -> None:
    (flows.state / "config.yaml").write_text("default_agent: first\n")
    flows.agent("first", "echo first: $(cat) > got")
    flows.agent("second", "echo second: $(cat) > got")
    prompt(flows, "review", "---\nparameters: [{name: branch}]\n---\nReview {{ branch }}.\n")
    assert flows.run("review", "main", "-q")[0] == 0
    assert flows.lines("got") == ["first: Review main."]
    found = flows.json("prompt", "run", "review", "-p", "branch=dev", "--agent", "second", "--json")
    assert (found["status"], found["workflow"]) == ("completed", "prompt:review")
    assert flows.lines("got") == ["second: Review dev."]
    assert flows.run("resume", found["run_id"])[0] == 0


def test_what_is_wrong_with_a_prompts_values_is_told_in_one_line_with_its_usage(flows: Project) -> None:
    prompt(flows, "review", "---\nparameters: [{name: branch}]\n---\nReview {{ branch }}.\n")
    code, _, err = flows.run("prompt", "run", "review", "main", "too many")
    assert code == 2
    assert err == "sidecar: too many words: 'too many'; a text needs quotes; usage: sidecar prompt run review BRANCH\n"
    code, _, err = flows.run("prompt", "run", "review", "main", "--agent", "nobody")
    assert code == 2
    assert "no such agent: nobody" in err
    assert flows.journalled() == []


def test_a_prompt_is_shown_with_its_values_and_without_any_as_it_is_written(flows: Project) -> None:
    prompt(flows, "review", "---\nparameters: [{name: branch}]\n---\nReview {{ branch }}.\n")
    assert flows.run("prompt", "show", "review", "main") == (0, "Review main.\n", "")
    code, out, err = flows.run("prompt", "show", "review")
    assert (code, out) == (0, "Review {{ branch }}.\n")
    assert err == "sidecar: shown as it is written: branch not given\n"


@pytest.mark.parametrize("form", ["json", "yaml", "table"])
def test_prompts_are_listed_like_workflows(flows: Project, form: str) -> None:
    prompt(flows, "review", "---\ndescription: Reviews.\nparameters: [{name: branch}]\n---\nReview {{ branch }}.\n")
    code, out, _ = flows.run("prompt", "list", "--format", form, "--source", "local", "-v")
    assert code == 0
    if form == "table":
        assert out.splitlines()[0].split(None, 2) == ["review", "project", "Reviews."]
        assert "branch (string, required)" in out
        return
    (row,) = (json.loads if form == "json" else yaml.safe_load)(out)["prompts"]
    assert (row["name"], row["source"], row["parameters"][0]["name"]) == ("review", "project", "branch")


def test_an_agent_by_its_bare_name_and_its_help(flows: Project) -> None:
    flows.agent("echoing", "cat")
    assert flows.run("echoing", "hello", "-q") == (0, "hello\n", "")
    code, out, _ = flows.run("echoing", "--help")
    assert code == 0
    assert "usage: sidecar agent run echoing PROMPT" in out
    assert "adapter: command" in out
