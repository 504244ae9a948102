"""Seed 001, success criteria 4 to 12 and 15, of the installed command; the others are beside the MCP tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.commands import COMMANDS

if TYPE_CHECKING:
    from tests.kit import Project

BRANCHES: dict[str, Any] = {
    "target_branch": {"type": "string", "required": True},
    "source_branch": {"type": "string", "required": True},
    "reviewer": {"type": "string", "default": "nobody"},
}
REVIEW = {
    "type": "shell_command",
    "command": "echo {{ inputs.target_branch }} {{ inputs.source_branch }} {{ inputs.reviewer }} > said",
}
SAY = {"type": "shell_command", "command": "echo {{ inputs.word }} > said"}
WORD = {"word": {"type": "string", "required": True}}


@pytest.fixture
def review(flows: Project) -> Project:
    flows.workflow("review", REVIEW, inputs=BRANCHES)
    return flows


@pytest.mark.parametrize("program", ["sidecar", "sah"])
def test_criterion_4_a_workflow_is_executed_by_flow_and_its_name(review: Project, program: str) -> None:
    command = [str(Path(sys.executable).with_name(program)), "flow", "review", "main", "feature-x", "-q"]
    done = subprocess.run(command, cwd=review.root, env=review.environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("completed ")
    assert review.lines("said") == ["main feature-x nobody"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["main", "feature-x"], "main feature-x nobody"),
        (["main", "feature-x", "--param", "reviewer=bob"], "main feature-x bob"),
        (["--param", "reviewer=bob", "main", "feature-x"], "main feature-x bob"),
        (["feature-x", "-p", "target_branch=main"], "main feature-x nobody"),
    ],
)
def test_criteria_5_and_15_required_parameters_are_words_in_their_order_and_optional_ones_are_named(
    review: Project, words: list[str], said: str
) -> None:
    assert review.run("flow", "review", *words, "-q")[0] == 0
    assert review.lines("said") == [said]


@pytest.mark.parametrize(("words", "problem"), [(["main"], "'source_branch' is required"), (["a", "b", "c"], "'c'")])
def test_criterion_15_a_word_too_few_or_for_an_optional_parameter_is_refused(
    review: Project, words: list[str], problem: str
) -> None:
    code, _, err = review.run("flow", "review", *words)
    assert (code, err.count("\n")) == (2, 1)
    assert problem in err
    assert "usage: sidecar flow run review TARGET_BRANCH SOURCE_BRANCH [-p reviewer=STRING]" in err


@pytest.mark.parametrize("form", [["review"], ["flow", "review"], ["flow", "run", "review"]])
def test_criteria_6_and_8_the_shortcut_and_the_full_forms_do_the_same(review: Project, form: list[str]) -> None:
    assert review.run(*form, "main", "feature-x", "--param", "reviewer=bob", "--quiet")[0] == 0
    assert review.lines("said") == ["main feature-x bob"]
    review.workflow("review", SAY, inputs=WORD)  # what was generated is not kept
    assert review.run(*form, "anew", "-q")[0] == 0
    assert review.lines("said") == ["anew"]


@pytest.mark.parametrize("name", ["list", "run", "flow", "serve", "stop", "agent"])
def test_criterion_7_a_workflow_with_a_name_that_is_taken_has_an_underscore(flows: Project, name: str) -> None:
    flows.workflow(name, SAY, inputs=WORD, description="Mine.")
    assert flows.run(f"_{name}", "hello", "-q")[0] == 0
    assert flows.lines("said") == ["hello"]
    told = flows.run("--help")[1].splitlines()
    assert [line.split(None, 1)[0] for line in told if f"'flow run {name}'" in line] == [f"_{name}"]


def test_criterion_9_no_workflow_is_wired_into_the_program(flows: Project) -> None:
    listed = [one["name"] for one in flows.json("flow", "list", "--format", "json", "--source", "builtin")["workflows"]]
    assert {"plan", "implement"} <= set(listed)
    assert set(listed) & set(COMMANDS) == set()
    help_text = flows.run("--help")[1]
    commands = help_text.partition("\ncommands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in commands] == COMMANDS
    assert [name for name in listed if f"(shortcut for 'flow run {name}')" not in help_text] == []
    flows.workflow("plan", SAY, inputs=WORD)  # ours is found first, and nobody notices
    assert flows.run("plan", "ours", "-q")[0] == 0
    assert flows.lines("said") == ["ours"]


@pytest.mark.parametrize("kind", ["flow", "agent", "prompt"])
def test_criterion_10_flows_agents_and_prompts_have_one_pattern(flows: Project, kind: str) -> None:
    (flows.state / "config.yaml").write_text("default_agent: helper\n")
    flows.agent("helper", "cat > said")
    (flows.state / "prompts").mkdir()
    parameters = "parameters: [{name: word, required: true}]"
    (flows.state / "prompts" / "ask.md").write_text(f"---\n{parameters}\n---\n{{{{ word }}}}")
    flows.workflow("say", SAY, inputs=WORD)
    name, things, parameter = {
        "flow": ("say", "workflows", "word"),
        "agent": ("helper", "agents", "prompt"),
        "prompt": ("ask", "prompts", "word"),
    }[kind]
    rows = flows.json(kind, "list", "--format", "json")[things]
    (row,) = [one for one in rows if one["name"] == name]
    assert {"name", "description", "source", "parameters"} <= set(row)
    assert (row["source"], row["parameters"][0]["name"]) == ("project", parameter)
    forms = [[kind, "run", name], [kind, name], [name]]
    for number, form in enumerate(forms):
        words = [f"{number}"] if number else ["-p", f"{parameter}={number}"]
        assert flows.run(*form, *words, "-q")[0] == 0
        assert flows.lines("said") == [f"{number}"]
        code, out, _ = flows.run(*form, "--help")
        assert (code, f"usage: sidecar {kind} run {name} {parameter.upper()}" in out) == (0, True)
    assert f"(shortcut for '{kind} run {name}')" in flows.run("--help")[1]


@pytest.mark.parametrize("form", [["review"], ["flow", "run", "review"]])
def test_criterion_11_var_still_works_and_says_what_to_write_instead(review: Project, form: list[str]) -> None:
    code, _, err = review.run(*form, "main", "feature-x", "--var", "reviewer=bob", "-q")
    assert (code, err) == (0, "sidecar: --var is deprecated: write -p reviewer=bob\n")
    assert review.lines("said") == ["main feature-x bob"]


@pytest.mark.parametrize("name", ["resume", "status", "logs", "test"])
def test_criterion_12_the_old_subcommands_of_flow_are_gone_and_their_names_free(flows: Project, name: str) -> None:
    code, out, err = flows.run("flow", name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"no such workflow: {name}; " in err
    assert (f"(the command is `sidecar {name}`)" in err) is (name in COMMANDS)
    flows.workflow(name, SAY, inputs=WORD)
    assert flows.run("flow", name, "hello", "-q")[0] == 0
    assert flows.lines("said") == ["hello"]
