"""A run that a terminal executes, seen and steered through the daemon's MCP tools: by its files and the journal."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mcp import Client

    from tests.kit import Project

pytestmark = pytest.mark.anyio
ERA = "2026-07-28"
# Is at work until somebody makes the file `go`.
WORKING = "echo $$ >> begun; until test -e go; do sleep 0.05; done"


class Terminal:
    """`sidecar flow run`, at work, beside a daemon that has nothing to do with it."""

    def __init__(self, project: Project, *steps: dict[str, Any]) -> None:
        self.project = project
        project.workflow(
            "work",
            {"id": "a", "type": "shell_command", "command": WORKING},
            *steps,
            default_state={"raw": {"count": 7}},
        )
        project.daemon()
        self.process: subprocess.Popen[str] = project.start("flow", "run", "work")
        project.until_file("begun")
        self.run_id = str(project.only_run()["run_id"])
        assert project.owner(self.run_id) == self.process.pid

    def go(self) -> None:
        (self.project.root / "go").touch()

    def over(self, code: int, status: str) -> None:
        assert self.process.wait(120) == code
        assert self.project.only_run()["status"] == status
        assert len(self.project.data(self.run_id, "run_ended")) == 1


async def _call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content or {}


async def _refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(getattr(result.content[0], "text", ""))


async def test_it_is_looked_at_and_left_alone(project: Project) -> None:
    terminal = Terminal(project)
    named = {"workflow_id": terminal.run_id}
    async with project.client(ERA) as client:
        (run,) = (await _call(client, "workflow_status", **named))["runs"]
        assert (run["status"], run["step"], run["agents"][0]["name"]) == ("running", "a", "a")
        assert await _call(client, "workflow_status") == {"runs": [run]}
        assert (await _call(client, "workflow_state_read", **named))["count"] == 7
        assert (await _call(client, "workflow_debug_info", **named))["current_step"] == "a"
        # Who executes it does its steps: the refusal says who that is, and nothing has happened.
        for tool, more in (
            ("workflow_get_next_step", {}),
            ("workflow_state_update", {"updates": [{"path": "raw.count", "value": 8}]}),
            ("workflow_checkpoint", {}),
        ):
            assert "is executed by another process" in await _refused(client, tool, **named, **more)
        assert "driven by sidecar now" in await _refused(client, "workflow_step_complete", **named, step_id="a")
        assert f"already being executed, by process {terminal.process.pid}" in await _refused(
            client, "workflow_resume", **named
        )
        terminal.go()
        terminal.over(0, "completed")
        assert (await _call(client, "workflow_state_read", **named))["count"] == 7


async def test_a_stop_is_taken_back_and_given_again(project: Project) -> None:
    terminal = Terminal(project, {"id": "b", "type": "shell_command", "command": "echo no > second"})
    async with project.client(ERA) as client:
        written = await _call(client, "stop", run_id=terminal.run_id)
        assert written["runs"] == [terminal.run_id]
        (run,) = (await _call(client, "workflow_status", workflow_id=terminal.run_id))["runs"]
        assert [signal["signal"] for signal in run["signals"]] == ["stop"]
        assert (await _call(client, "stop", run_id=terminal.run_id, cancel=True))["cancelled"]
        await _call(client, "stop", run_id=terminal.run_id, reason="enough")
        terminal.go()
        terminal.over(0, "stopped")
        # Nobody has it any more: it goes on in the daemon.
        await _call(client, "workflow_resume", workflow_id=terminal.run_id, driver="server")
        project.until_status(terminal.run_id, "completed")
    assert (project.root / "second").exists()


async def test_an_abort_ends_it(project: Project) -> None:
    terminal = Terminal(project)
    async with project.client(ERA) as client:
        await _call(client, "abort", run_id=terminal.run_id, reason="tests are red")
        terminal.over(2, "aborted")
        (run,) = (await _call(client, "workflow_status", workflow_id=terminal.run_id))["runs"]
        assert (run["reason"], run["agents"]) == ("tests are red", [])


async def test_its_question_is_answered(project: Project) -> None:
    question = {"id": "q", "type": "user_input", "prompt": "colour?", "state_update": {"path": "raw.colour"}}
    terminal = Terminal(project, question)
    terminal.go()
    terminal.over(0, "paused")  # without a terminal to ask at, it waits
    async with project.client(ERA) as client:
        (run,) = (await _call(client, "workflow_status", workflow_id=terminal.run_id))["runs"]
        assert run["status"] == "paused"
        await _call(client, "workflow_resume", workflow_id=terminal.run_id, answer="red")
        project.until_status(terminal.run_id, "completed")
        assert (await _call(client, "workflow_state_read", workflow_id=terminal.run_id))["colour"] == "red"
