"""`sidecar serve`: MCP on standard input and output, with a daemon behind it or without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit import DEADLINE_S, SIDECAR

if TYPE_CHECKING:
    from tests.kit import Project

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
OWN = {
    "sidecar",
    "sidecar.__main__",
    "sidecar.cli",
    "sidecar.cli.serve",
    "sidecar.errors",
    "sidecar.layout",
    "sidecar.sockets",
}
NOISE = """\
import os, sys

def hear(event, arguments):
    if event == "sqlite3.connect":
        print("a library prints")
        os.write(1, b"and writes")

sys.addaudithook(hear)
"""


@pytest.fixture(params=["with a daemon", "without one"])
def served(request: pytest.FixtureRequest, project: Project) -> Project:
    """A project whose clients find a daemon, or none."""
    project.workflow("quick", {"id": "a", "type": "shell_command", "command": "echo said"})
    working = "touch begun; until test -e go; do sleep 0.05; done"
    project.workflow(
        "work",
        {"id": "a", "type": "shell_command", "command": working},
        {"id": "b", "type": "shell_command", "command": "echo done > ended"},
    )
    if request.param == "with a daemon":
        project.daemon()
    return project


def _talk(process: subprocess.Popen[str], *messages: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
    process.stdin.flush()


def _serve(project: Project) -> subprocess.Popen[str]:
    process = project.start("serve", stdin=subprocess.PIPE)
    _talk(process, INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "sidecar"
    return process


@pytest.mark.anyio
async def test_a_workflow_is_run_in_both_eras(served: Project, era: str) -> None:
    async with served.client(era) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {"flow", "abort", "stage_gate", "workflow_get_next_step"} <= listed
        result = (await client.call_tool("flow", {"flow_name": "quick"})).structured_content or {}
        assert result["status"] == "completed"
        refused = await client.call_tool("flow", {"flow_name": "quikc"})
    assert refused.is_error
    assert result["run_id"] == served.only_run()["run_id"]


def test_a_run_outlives_the_client_that_started_it(served: Project) -> None:
    process = _serve(served)
    call = {"name": "flow", "arguments": {"flow_name": "work"}}
    _talk(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    served.until((served.root / "begun").exists)
    run_id = served.only_run()["run_id"]
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(DEADLINE_S) == 0
    assert served.is_live(run_id)
    assert served.owner(run_id) != process.pid
    (served.root / "go").touch()
    served.until_status(run_id, "completed")
    assert (served.root / "ended").read_text() == "done\n"


def test_standard_output_carries_the_protocol_only(served: Project) -> None:
    loud = "echo to stdout; echo to stderr >&2; echo $SIDECAR_RUN_ID"
    served.workflow("loud", {"id": "a", "type": "shell_command", "command": loud})
    served.workflow(
        "driven", {"id": "a", "type": "shell_command", "command": loud}, {"id": "b", "type": "agent", "prompt": "x"}
    )
    # A library that prints in the middle of its work: here whenever a database is opened.
    (served.root / "site").mkdir()
    (served.root / "site" / "sitecustomize.py").write_text(NOISE)
    path = [str(served.root / "site"), *filter(None, [served.environment.get("PYTHONPATH")])]
    served.environment["PYTHONPATH"] = os.pathsep.join(path)
    process = _serve(served)
    started = {"name": "workflow_start", "arguments": {"workflow": "driven"}}
    _talk(process, {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": started})
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    run_id = first["result"]["structuredContent"]["workflow_id"]
    step = {"name": "workflow_get_next_step", "arguments": {"workflow_id": run_id}}
    flow = {"name": "flow", "arguments": {"flow_name": "loud"}}
    for number, call in enumerate((step, flow), start=3):
        _talk(process, {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
    answered: set[int] = set()
    while answered != {3, 4}:
        message = json.loads(process.stdout.readline())
        answered |= {message["id"]} if "id" in message else set()
    assert process.stdin is not None
    process.stdin.close()
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in process.stdout)
    assert process.wait(DEADLINE_S) == 0


def test_with_a_daemon_it_imports_next_to_nothing(project: Project) -> None:
    project.daemon()
    bare = _imported(project, "-c", "pass")
    found = _imported(project, SIDECAR, "serve") - bare
    own = {name for name in found if name.partition(".")[0] == "sidecar"}
    assert own == OWN
    assert found - own <= {"__future__", "errno", "select", "_socket", "socket", "selectors", "math", "array"} | _ENUM


# What `socket` itself brings along.
_ENUM = {
    *("collections", "collections.abc", "enum", "functools", "itertools", "keyword", "operator", "reprlib", "types"),
    *("_collections", "_functools", "_operator"),
}


def _imported(project: Project, *command: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        cwd=project.root,
        env=project.environment,
        input=json.dumps(INITIALIZE) + "\n",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines[1:]}


@pytest.mark.anyio
async def test_an_agent_whose_run_does_not_answer_still_aborts_that_run_and_not_the_project(
    project: Project,
) -> None:
    """Whoever owns the run is gone, and the daemon serves all others: an abort there would mean the whole project."""
    project.workflow("ask", {"id": "a", "type": "user_input", "prompt": "which?"})
    project.daemon()
    project.output("flow", "run", "ask")
    run_id = project.only_run()["run_id"]
    async with project.client("2026-07-28", SIDECAR_RUN_ID=run_id) as client:
        told = (await client.call_tool("abort", {"reason": "no"})).structured_content or {}
    assert told["path"] == str(project.state / "runs" / run_id / ".abort")


def test_a_signal_ends_it(served: Project) -> None:
    process = _serve(served)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) in (-signal.SIGTERM, 128 + signal.SIGTERM)


def test_what_it_cannot_do_is_said_in_one_line(project: Project, tmp_path: Path) -> None:
    assert project.output("serve", "--http", code=2) == (
        "sidecar: serve takes --project DIR and nothing else, not '--http'\n"
    )
    assert "no such directory" in project.output("serve", "--project", str(tmp_path / "nowhere"), code=2)
    assert "usage: sidecar serve" in project.output("serve", "--help")
