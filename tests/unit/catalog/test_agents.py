"""Agents by name: where they are found, and what is said when they are not, or are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.catalog import agents
from sidecar.errors import DefinitionError, NotFound, SidecarError


class Catalog:
    """A project and a home with agents in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / ".swissarmyhammer" / "agents"
        self.home = Path(os.environ["HOME"]) / ".swissarmyhammer" / "agents"
        for directory in (self.project, self.home):
            directory.mkdir(parents=True)

    def find(self, name: str) -> agents.CatalogAgent:
        return agents.find(str(self.root), name)

    def problems(self, text: str) -> list[str]:
        """What is wrong with a file, without the file's name."""
        path = self.project / "it.yaml"
        path.write_text(text)
        with pytest.raises(DefinitionError) as caught:
            self.find("it")
        prefix = f"{path}:"
        assert all(problem.startswith(prefix) for problem in caught.value.problems)
        return [problem.removeprefix(prefix) for problem in caught.value.problems]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "command"])
def test_four_agents_are_built_in_with_one_required_parameter(catalog: Catalog, name: str) -> None:
    agent = catalog.find(name)
    assert (agent.name, agent.source, agent.path, agent.definition.adapter) == (name, "builtin", None, name)
    assert [parameter.name for parameter in agent.definition.declared if parameter.is_required] == ["prompt"]


def test_the_built_in_command_takes_its_argv_as_a_parameter(catalog: Catalog) -> None:
    assignment = catalog.find("command").definition.assign("command", {"prompt": "in", "command": ["sh", "-c", "cat"]})
    assert (assignment.command, assignment.prompt) == (("sh", "-c", "cat"), "in")
    with pytest.raises(SidecarError, match="parameter 'command'"):
        catalog.find("command").definition.assign("command", {"prompt": "in"})


def test_the_project_wins_over_the_home_and_both_over_what_is_built_in(catalog: Catalog) -> None:
    (catalog.home / "claude.yaml").write_text("adapter: claude\nmodel: from-home\n")
    assert (catalog.find("claude").source, catalog.find("claude").definition.model) == ("global", "from-home")
    (catalog.project / "claude.yml").write_text("adapter: claude\nmodel: from-project\n")
    found = catalog.find("claude")
    assert (found.source, found.definition.model) == ("project", "from-project")
    assert found.path == str(catalog.project / "claude.yml")
    (catalog.project / "claude.yaml").write_text("adapter: gemini\n")
    assert catalog.find("claude").definition.adapter == "gemini"
    with pytest.raises(NotFound):
        catalog.find("Claude")


def test_a_broken_file_is_an_error_and_not_a_reason_to_take_the_next(catalog: Catalog) -> None:
    (catalog.home / "claude.yaml").write_text("adapter: claude\n")
    (catalog.project / "claude.yaml").write_text("adapter: [\n")
    with pytest.raises(DefinitionError):
        catalog.find("claude")


def test_every_problem_is_told_with_its_line_in_the_order_of_the_file(catalog: Catalog) -> None:
    text = (
        "adaptor: claude\n"
        "adapter: cloud\n"
        "args: [--turns, 3]\n"
        "env:\n  PORT: 80\n"
        "limits:\n  timeout: soon\n  max_tokns: 5\n"
        "parameters:\n  - nam: file\n  - {name: x, type: text}\n"
        "prompt_via: pipe\n"
    )
    assert catalog.problems(text) == [
        "1: unknown key 'adaptor'; did you mean 'adapter'?",
        "2: `adapter`: 'cloud' is not 'claude', 'codex', 'gemini' or 'command'; did you mean 'claude'?",
        "3: number 2 of this list has to be text; put it in quotes",
        "5: `PORT` has to be text; put it in quotes",
        "7: `timeout`: 'soon' is not a duration: write milliseconds (1500) or a unit (30s, 5m, 2h, 1h30m)",
        "8: unknown key 'max_tokns'; did you mean 'max_tokens'?",
        "10: `name` is missing",
        "10: unknown key 'nam'; did you mean 'name'?",
        "11: `type`: 'text' is not 'string', 'number', 'integer', 'boolean', 'array' or 'object'",
        "12: `prompt_via`: 'pipe' is not 'stdin' or 'argument'",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "1: an agent definition is a mapping, `name: value` on each line"),
        ("- adapter: claude\n", "1: an agent definition is a mapping, `name: value` on each line"),
        ("model: x\n", "1: `adapter` is missing: one of claude, codex, gemini, command"),
        ("model: x\nadapter: claude\nmodel: y\n", "3: 'model' is there twice, first on line 1"),
        ("adapter: claude\nzzz: 1\n", "2: unknown key 'zzz'; available: adapter, args, "),
        ("adapter: claude\nprompt: hi {{ topic }}\n", "2: `prompt`: unknown parameter 'topic'"),
        ("adapter: claude\nprompt: '{{ a.b }}'\n", "2: `prompt`: {{ a.b }} is not the name of a parameter"),
        ("adapter: command\ncommand: make all\n", "2: `command` has to be a list"),
        ("adapter: claude\n1: x\n", "2: the key 1 is not text"),
        ("adapter: claude\nlimits: 5\n", "2: `limits` has to be a mapping"),
        ("adapter: claude\nlimits:\n  timeot: 5s\n", "3: unknown key 'timeot'; did you mean 'timeout'?"),
        ("adapter: claude\nlimits:\n  timeout_s: 5\n", "3: unknown key 'timeout_s'; did you mean 'timeout'?"),
    ],
)
def test_a_file_that_defines_no_agent_says_why(catalog: Catalog, text: str, problem: str) -> None:
    (told,) = catalog.problems(text)
    assert told.startswith(problem)


def test_a_name_that_nobody_has_gets_the_names_that_exist_nearest_first(catalog: Catalog) -> None:
    (catalog.project / "reviewer.yaml").write_text("adapter: claude\n")
    with pytest.raises(NotFound) as caught:
        catalog.find("revewer")
    told = str(caught.value)
    assert told.startswith("no such agent: revewer; available: reviewer, ")
    assert set(told.rpartition(": ")[2].split(", ")) == {"claude", "codex", "command", "gemini", "reviewer"}


@pytest.mark.parametrize("name", ["../claude", "a/b", "", "a.b", "a b", "é", "a\n", "a\0", ".."])
def test_a_name_that_could_leave_the_directory_is_refused(catalog: Catalog, name: str) -> None:
    (catalog.project.parent / "claude.yaml").write_text("adapter: claude\n")
    with pytest.raises(NotFound, match="cannot be a name"):
        catalog.find(name)


def test_the_listing_has_every_agent_once_by_name_and_a_broken_file_hides_no_other(catalog: Catalog) -> None:
    (catalog.project / "b.yaml").write_text("adapter: claude\n")
    (catalog.project / "broken.yaml").write_text("adapter: claude\nx: 1\ny: 2\n")
    (catalog.home / "b.yaml").write_text("adapter: codex\n")
    (catalog.home / "a.yaml").write_text("adapter: codex\n")
    (catalog.project / "not an agent.yaml").write_text("x")
    (catalog.project / "notes.txt").write_text("x")
    found, problems = agents.listing(str(catalog.root))
    assert [(agent.name, agent.source) for agent in found] == [
        ("a", "global"),
        ("b", "project"),
        ("claude", "builtin"),
        ("codex", "builtin"),
        ("command", "builtin"),
        ("gemini", "builtin"),
    ]
    assert len(problems) == 2
    assert all("broken.yaml:" in problem for problem in problems)
