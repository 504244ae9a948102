"""Which name a workflow, an agent or a prompt has at the top level."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.cli import completion, main


def define(root: Path, kind: str, name: str, text: str = "") -> Path:
    path = root / ".swissarmyhammer" / kind / (f"{name}.md" if kind == "prompts" else f"{name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def own(root: Path) -> dict[str, tuple[str, str]]:
    """Those that are not there anyway."""
    (root / "empty").mkdir(exist_ok=True)
    builtin = completion.shortcuts(str(root / "empty"))
    return {name: what for name, what in completion.shortcuts(str(root)).items() if builtin.get(name) != what}


def test_of_a_workflow_an_agent_and_a_prompt_of_one_name_the_first_has_it(tmp_path: Path) -> None:
    for kind in ("prompts", "agents", "workflows"):
        define(tmp_path, kind, "same")
    assert own(tmp_path) == {"same": ("flow", "same"), "_same": ("agent", "same"), "__same": ("prompt", "same")}


def test_what_is_really_called_so_keeps_its_name(tmp_path: Path) -> None:
    define(tmp_path, "workflows", "serve")
    define(tmp_path, "prompts", "_serve")
    assert own(tmp_path) == {"_serve": ("prompt", "_serve"), "__serve": ("flow", "serve")}


def test_a_name_that_would_be_an_option_has_no_shortcut(tmp_path: Path) -> None:
    define(tmp_path, "workflows", "--help")
    assert own(tmp_path) == {}


def test_help_says_what_each_stands_for_by_kind(tmp_path: Path) -> None:
    define(tmp_path, "workflows", "serve", "description: Serves lunch.\n")
    define(tmp_path, "prompts", "greeting", "---\ndescription: 'Says hello.'\n---\nHello\n")
    lines = main._shortcut_lines(str(tmp_path))
    kinds = [line for line in lines if line.endswith(":")]
    assert kinds == ["workflows:", "agents:", "prompts:"]
    serve = next(line for line in lines if line.startswith("  _serve "))
    assert serve.split(None, 1)[1] == "Serves lunch. (shortcut for 'flow run serve')"
    assert lines.index(serve) < lines.index("agents:")
    greeting = next(line for line in lines if line.startswith("  greeting "))
    assert greeting.endswith("Says hello. (shortcut for 'prompt run greeting')")
    assert lines.index(greeting) > lines.index("prompts:")
    assert any(line.endswith("Claude Code, headless. (shortcut for 'agent run claude')") for line in lines)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("description: Plain words.\nsteps: []\n", "Plain words."),
        ("name: x\ndescription: with a comment # here\n", "with a comment"),
        ('description: "In quotes: yes."\n', "In quotes: yes."),
        ("description: >\n  Folded\n  over lines.\nsteps: []\n", "Folded over lines."),
        ("description: Plain\n  over lines.\nsteps: []\n", "Plain over lines."),
        ('description: "with \\" an escape"\n', ""),
        ("description: &anchor text\n", ""),
        ("steps:\n  - description: of a step\n", ""),
        ("", ""),
        ("description: " + "long " * 50, ("long " * 12)[:59] + "…"),
        ("description: bell\x07\n", "bell"),
    ],
)
def test_a_description_is_read_where_that_is_simple_and_left_out_otherwise(
    tmp_path: Path, text: str, told: str
) -> None:
    assert completion._description("x", str(define(tmp_path, "workflows", "x", text))).strip() == told


def test_a_description_of_a_prompt_is_in_its_front_matter_only(tmp_path: Path) -> None:
    path = define(tmp_path, "prompts", "x", "---\ntitle: X\n---\ndescription: of the body\n")
    assert completion._description("x", str(path)) == ""


def test_the_description_of_a_workflow_in_a_wrapper_is_found_too(tmp_path: Path) -> None:
    path = define(
        tmp_path, "workflows", "a", '# why\nworkflow:\n  name: a\n\n  description: "It: works."\n  steps: []\n'
    )
    assert completion._description("a", str(path)) == "It: works."
    path = define(tmp_path, "workflows", "b", "steps: []\nworkflow:\n  description: not this\n")
    assert completion._description("b", str(path)) == ""
