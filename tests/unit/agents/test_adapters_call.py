"""How each adapter calls its tool."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.adapters.adapter import Invocation, McpConfiguration
from sidecar.errors import AgentFailed
from sidecar.model.agent import AdapterName, AgentDefinition

TOOLS: tuple[AdapterName, ...] = ("claude", "codex", "gemini")
MCP: McpConfiguration = {
    "command": ["/opt/py thon", "-m", 'it\'s "é" 😀 \x7f \\'],
    "env": {"SIDECAR_RUN_ID": "01J", "A B": "=\n"},
}


class Place:
    """A project directory, and a directory on PATH with a program for each tool."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "project"
        self.path = root / "bin"
        self.cwd.mkdir()
        self.path.mkdir()
        self.environment = {"PATH": str(self.path)}
        for name in TOOLS:
            program(self.path / name)

    def call(
        self, adapter: AdapterName, prompt: str = "do it", mcp: McpConfiguration | None = None, **values: Any
    ) -> Invocation:
        definition = AgentDefinition.model_validate({"adapter": adapter, **values})
        assignment = definition.assign("mine", {"prompt": prompt})
        return ADAPTERS[adapter].invocation(assignment, cwd=str(self.cwd), environment=self.environment, mcp=mcp)


def program(path: Path) -> Path:
    """A real program that prints its arguments and its standard input as JSON."""
    script = """import json, sys
print(json.dumps([sys.argv[1:], sys.stdin.buffer.read().decode("utf-8", "surrogateescape")]))"""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("adapter", "arguments"),
    [
        ("claude", ("-p", "--output-format", "stream-json", "--verbose")),
        ("codex", ("exec", "--json", "--skip-git-repo-check", "-")),
        ("gemini", ("--output-format", "stream-json", "--skip-trust")),
    ],
)
def test_a_tool_runs_headless_and_gets_its_prompt_on_standard_input(
    place: Place, adapter: AdapterName, arguments: tuple[str, ...]
) -> None:
    call = place.call(adapter, "do it")
    assert call.argv == (str(place.path / adapter), *arguments)
    assert call.stdin == b"do it"


@pytest.mark.parametrize(
    ("adapter", "end"),
    [("claude", ("--", "-x")), ("codex", ("--", "-x")), ("gemini", ("--prompt=-x",)), ("command", ("-x",))],
)
def test_a_prompt_as_an_argument_is_never_taken_for_an_option(
    place: Place, adapter: AdapterName, end: tuple[str, ...]
) -> None:
    command = ["claude"] if adapter == "command" else None
    call = place.call(adapter, "-x", prompt_via="argument", command=command)
    assert call.argv[-len(end) :] == end
    assert call.stdin == b""


@pytest.mark.parametrize("adapter", TOOLS)
def test_model_arguments_and_variables_of_the_definition_are_used(place: Place, adapter: AdapterName) -> None:
    call = place.call(adapter, model="big", args=["--more", "x"], env={"LANG": "C"})
    words = list(call.argv)
    assert words[words.index("--model") + 1] == "big"
    assert words.index("--more") > words.index("--model")  # later ones win
    assert call.environment["LANG"] == "C"


def test_claude_holds_itself_to_the_cost_limit(place: Place) -> None:
    call = place.call("claude", limits={"max_cost_usd": 0.25})
    assert call.argv[call.argv.index("--max-budget-usd") + 1] == "0.25"
    assert "--max-budget-usd" not in place.call("claude").argv


def test_the_mcp_server_is_made_known_to_claude_and_permitted(place: Place) -> None:
    words = place.call("claude", mcp=MCP).argv
    configuration = json.loads(words[words.index("--mcp-config") + 1])
    program, *arguments = MCP["command"]
    server = {"type": "stdio", "command": program, "args": arguments, "env": MCP["env"]}
    assert configuration == {"mcpServers": {"sidecar": server}}
    assert words[words.index("--allowedTools") + 1] == "mcp__sidecar"


def test_the_mcp_server_is_made_known_to_codex_waited_for_and_permitted(place: Place) -> None:
    words = place.call("codex", mcp=MCP).argv
    (override,) = [word for word in words if word.startswith("mcp_servers")]
    assert words[words.index(override) - 1] == "-c"
    program, *arguments = MCP["command"]
    server = {
        "command": program,
        "args": arguments,
        "env": MCP["env"],
        "required": True,
        "default_tools_approval_mode": "approve",
    }
    assert tomllib.loads(override) == {"mcp_servers": {"sidecar": server}}


def test_gemini_gets_the_variables_that_lead_its_own_server_to_the_run(place: Place) -> None:
    call = place.call("gemini", mcp=MCP)
    assert call.environment["SIDECAR_RUN_ID"] == "01J"
    assert call.argv == place.call("gemini").argv
    assert str(ADAPTERS["gemini"].mcp_by_hand).startswith("gemini mcp add ")


@pytest.mark.parametrize("adapter", TOOLS)
def test_without_a_server_nothing_speaks_of_one(place: Place, adapter: AdapterName) -> None:
    call = place.call(adapter)
    assert not any("mcp" in word.lower() for word in call.argv)
    assert "SIDECAR_RUN_ID" not in call.environment


def test_bytes_that_are_no_text_reach_the_command_as_they_were(place: Place) -> None:
    assert place.call("command", os.fsdecode(b"a\xff"), command=["claude"]).stdin == b"a\xff"


@pytest.mark.parametrize(("prompt", "message"), [("x" * 200_000, "too long for an argument"), ("a\0b", "NUL")])
def test_a_prompt_that_cannot_be_an_argument_says_what_to_do(place: Place, prompt: str, message: str) -> None:
    with pytest.raises(AgentFailed, match=f"{message}.*prompt_via: stdin"):
        place.call("claude", prompt, prompt_via="argument")
    assert place.call("claude", prompt).stdin == prompt.encode()


@pytest.mark.parametrize("adapter", TOOLS)
def test_a_missing_program_is_named_with_every_way_to_point_to_it(place: Place, adapter: AdapterName) -> None:
    (place.path / adapter).unlink()
    with pytest.raises(AgentFailed) as caught:
        place.call(adapter)
    told = str(caught.value)
    assert f"agent 'mine': cannot find the program '{adapter}'" in told
    assert ADAPTERS[adapter].package in told
    assert f"SIDECAR_{adapter.upper()}=/path/to/{adapter}" in told
    assert f"`command: [/path/to/{adapter}]` in .swissarmyhammer/agents/mine.yaml" in told
    assert "\n" not in told


@pytest.mark.parametrize("adapter", TOOLS)
def test_a_variable_names_the_program_and_the_definition_beats_it(
    place: Place, adapter: AdapterName, tmp_path: Path
) -> None:
    named = program(tmp_path / "named")
    place.environment[f"SIDECAR_{adapter.upper()}"] = str(named)
    assert place.call(adapter).argv[0] == str(named)
    own = program(tmp_path / "own")
    assert place.call(adapter, command=[str(own), "--wrapped"]).argv[:2] == (str(own), "--wrapped")


def test_a_program_is_found_where_the_agent_runs_in_the_home_and_on_the_path_of_the_definition(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    inside = program(place.cwd / "tools" / "agent")
    assert place.call("command", command=["tools/agent"]).argv[0] == str(inside)
    assert os.path.samefile(place.call("command", command=["./tools/agent"]).argv[0], inside)
    own = program(Path(os.environ["HOME"]) / "agent")
    assert place.call("command", command=["~/agent"]).argv[0] == str(own)
    other = program(tmp_path / "other" / "claude")
    assert place.call("claude", env={"PATH": str(other.parent)}).argv[0] == str(other)


def test_a_variable_that_names_nothing_is_an_error_and_not_ignored(place: Place) -> None:
    place.environment["SIDECAR_CLAUDE"] = "/nowhere/claude"
    with pytest.raises(AgentFailed, match="'/nowhere/claude'"):
        place.call("claude")


def test_a_file_that_may_not_be_executed_is_no_program(place: Place) -> None:
    (place.path / "claude").chmod(0o644)
    with pytest.raises(AgentFailed, match="the program 'claude', or it is not executable"):
        place.call("claude")
