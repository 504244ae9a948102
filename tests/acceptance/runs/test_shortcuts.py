"""Workflows, agents and prompts as commands: `flow`, `agent`, `prompt`, and the bare name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kit import Project

ECHO = {"type": "shell_command", "command": "echo {{ inputs.word }} > said"}
WORD = {"word": {"type": "string", "required": True, "description": "What to say."}}


def prompt(flows: Project, name: str, text: str) -> None:
    path = flows.state / "prompts" / f"{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


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
    assert err == "sidecar: shown without values, because these are missing: branch\n"


def test_prompts_are_listed_like_workflows(flows: Project) -> None:
    prompt(flows, "review", "---\ndescription: Reviews.\nparameters: [{name: branch}]\n---\nReview {{ branch }}.\n")
    out = flows.output("prompt", "list", "--format", "table", "--source", "local", "-v")
    assert out.splitlines()[0].split(None, 2) == ["review", "project", "Reviews."]
    assert "branch (string, required)" in out
