"""`sidecar daemon`: what it executes, what it resumes, what it ends, and what it survives."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest
import yaml
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.kit import DEADLINE_S, sockets
from tests.kit.mcp_client import HELLO

if TYPE_CHECKING:
    from tests.kit import Daemon, Project

# Is at work until somebody makes the file `go`, and says where it is.
WORKING = "echo $$ >> begun; until test -e go; do sleep 0.05; done; echo done >> ended"


@pytest.fixture
def working(project: Project) -> Project:
    """A project whose workflow `work` works until it is let go."""
    project.workflow("work", {"id": "a", "type": "shell_command", "command": WORKING})
    return project


def test_a_project_has_one_daemon(project: Project) -> None:
    daemon = project.daemon()
    assert f"has a daemon already: process {daemon.process.pid}" in project.output("daemon", code=2)
    mode = (project.state / "sidecar.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == stat.S_IMODE((project.state / "handover.sock").stat().st_mode) == 0o600
    assert daemon.end() == 0
    assert not (project.state / "sidecar.sock").exists()
    assert not (project.state / "handover.sock").exists()


def _has_open(pid: int, path: Path) -> bool:
    with suppress(psutil.Error):
        return str(path) in {file.path for file in psutil.Process(pid).open_files()}
    return False


def test_a_daemon_starts_while_somebody_looks_at_its_lock(project: Project) -> None:
    """As `sidecar doctor` does for a moment."""
    lock = project.state / "sidecar.lock"
    with lock.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        with (project.root / "log").open("w") as log:
            daemon = project.start("daemon", stderr=log)
        project.until(lambda: daemon.poll() is not None or _has_open(daemon.pid, lock))
    project.until(lambda: daemon.poll() is not None or (project.state / "sidecar.sock").exists())
    assert daemon.poll() is None, (project.root / "log").read_text()
    daemon.terminate()
    assert daemon.wait(DEADLINE_S) == 0


def test_a_daemon_whose_place_is_taken_away_ends_and_so_do_its_agents(working: Project) -> None:
    """As `git clean` does it. Whoever keeps it running starts another, which is found."""
    daemon = working.daemon()
    working.detached("work")
    agent = psutil.Process(int(working.until_file("begun").read_text()))
    shutil.rmtree(working.state)
    assert daemon.process.wait(DEADLINE_S) == 2
    assert "was removed or replaced; a daemon that is started now will do" in daemon.printed
    assert not agent.is_running()
    assert not working.state.exists()


def test_a_daemon_whose_lock_was_removed_makes_way_for_another_and_leaves_its_sockets_alone(working: Project) -> None:
    first = working.daemon()
    (working.state / "sidecar.lock").unlink()
    second = working.daemon()
    assert first.process.wait(DEADLINE_S) == 2
    assert working.owner(working.detached("work")) == second.process.pid
    (working.root / "go").touch()
    assert second.end() == 0


@pytest.mark.anyio
async def test_the_sockets_of_a_daemon_that_was_killed_are_replaced(project: Project) -> None:
    project.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    project.daemon().end(signal.SIGKILL)
    assert (project.state / "sidecar.sock").exists()
    # Nobody answers there: what is handed over goes to an owner of its own.
    project.until_status(project.detached("quick"), "completed")
    daemon = project.daemon()
    async with project.client("2026-07-28") as client:
        result = await client.call_tool("flow", {"flow_name": "quick"})
    assert (result.structured_content or {})["status"] == "completed"
    assert project.owner((result.structured_content or {})["run_id"]) == daemon.process.pid


def test_what_is_handed_over_is_executed_by_the_daemon_in_the_environment_of_its_client(working: Project) -> None:
    working.workflow("tell", {"id": "a", "type": "shell_command", "command": "echo $WHOSE > whose"})
    working.environment["WHOSE"] = "the daemon's"
    daemon = working.daemon()
    working.environment["WHOSE"] = "the client's"
    told = working.detached("tell")
    working.until_status(told, "completed")
    assert (working.root / "whose").read_text() == "the client's\n"
    work = working.detached("work")
    assert working.owner(work) == daemon.process.pid
    (working.root / "go").touch()
    working.until_status(work, "completed")


def test_at_its_end_runs_are_interrupted_and_the_next_daemon_resumes_them(working: Project) -> None:
    daemon = working.daemon()
    run_id = working.detached("work")
    working.until_file("begun")
    assert daemon.end() == 0
    assert working.only_run()["status"] == "interrupted"
    assert [ended["reason"] for ended in working.data(run_id, "agent_ended")] == ["shutdown"]
    assert not working.processes()
    after = working.daemon()
    working.until(lambda: len((working.root / "begun").read_text().split()) == 2)
    assert working.is_live(run_id)
    (working.root / "go").touch()
    working.until_status(run_id, "completed")
    assert (working.root / "ended").read_text() == "done\n"
    assert f"resumed run {run_id}" in after.printed
    assert [told["status"] for told in working.data(run_id, "run_ended")] == ["interrupted", "completed"]


def test_a_daemon_that_is_killed_leaves_no_agent_and_its_runs_are_resumed(working: Project) -> None:
    daemon = working.daemon()
    run_id = working.detached("work")
    (worker,) = map(int, working.until_file("begun").read_text().split())
    daemon.end(signal.SIGKILL)
    working.until(lambda: worker not in {process.pid for process in working.processes()})
    working.daemon()
    working.until(lambda: len((working.root / "begun").read_text().split()) == 2)
    (working.root / "go").touch()
    working.until_status(run_id, "completed")
    reasons = [told["reason"] for told in working.data(run_id, "run_ended")]
    assert reasons[0] == "its owner died"


# Kills its owner, unless it is told not to.
DEADLY = """echo $SIDECAR_RUN_ID >> tries
[ ! -e calm ] || exit 0
[ ! -e slow ] || { touch waits; sleep 300; }
kill -9 $(head -n 1 .swissarmyhammer/runs/$SIDECAR_RUN_ID/lock); sleep 300"""


def killed_daemon(project: Project) -> None:
    """A daemon that the step of its run kills."""
    assert project.start("daemon").wait(DEADLINE_S) == -signal.SIGKILL
    project.until(lambda: not project.processes())


def tries(project: Project) -> int:
    return len((project.root / "tries").read_text().split())


def test_a_run_at_whose_same_step_its_owner_died_three_times_is_left_to_a_person(project: Project) -> None:
    project.workflow("deadly", {"id": "first", "type": "shell_command", "command": DEADLY})
    run_id = project.detached("deadly")
    project.until(lambda: not project.processes())
    killed_daemon(project)
    killed_daemon(project)
    assert tries(project) == 3
    for _ in range(2):  # also for every daemon that comes later
        daemon = project.daemon()
        assert f"run {run_id} (deadly) is not resumed: its owner died 3 times at step first" in daemon.printed
        assert daemon.end() == 0
    assert tries(project) == 3
    (found,) = json.loads(project.output("status", run_id, "--json"))["runs"]
    assert found["status"] == "interrupted"
    assert found["reason"].endswith(f"it is left to you; when that is mended: sidecar resume {run_id} --detach")
    assert [told["status"] for told in project.data(run_id, "run_ended")] == ["interrupted"] * 3
    # Whoever resumes it has mended something: the count begins anew.
    project.start("resume", run_id, "--detach").wait(DEADLINE_S)
    project.until(lambda: not project.processes())
    assert tries(project) == 4
    (project.root / "calm").touch()
    project.daemon()
    project.until_status(run_id, "completed")


def test_a_run_whose_owner_dies_at_another_iteration_each_time_goes_on(project: Project) -> None:
    deadly = DEADLY[DEADLY.index("kill") :]
    command = f'echo {{{{ item }}}} >> tries; [ "$(grep -c {{{{ item }}}} tries)" -gt 2 ] || {{ {deadly}; }}'
    project.workflow(
        "deadly",
        {
            "id": "each",
            "type": "foreach",
            "items": ["a", "b"],
            "steps": [{"id": "one", "type": "shell_command", "command": command}],
        },
    )
    run_id = project.detached("deadly")
    project.until(lambda: not project.processes())
    for _ in range(3):
        killed_daemon(project)
    project.daemon()
    project.until_status(run_id, "completed")
    assert (project.root / "tries").read_text().split() == ["a"] * 3 + ["b"] * 3


def test_a_clean_shutdown_in_between_makes_the_count_begin_anew(project: Project) -> None:
    project.workflow("deadly", {"id": "one", "type": "shell_command", "command": DEADLY})
    run_id = project.detached("deadly")
    project.until(lambda: not project.processes())
    killed_daemon(project)
    (project.root / "slow").touch()
    daemon = project.daemon()
    project.until((project.root / "waits").exists)
    assert daemon.end() == 0
    (project.root / "slow").unlink()
    killed_daemon(project)
    killed_daemon(project)
    (project.root / "calm").touch()
    project.daemon()
    project.until_status(run_id, "completed")


@pytest.mark.parametrize("moment", ["during a run", "between runs"])
def test_a_sentinel_that_is_killed_costs_no_more_than_the_steps_that_it_guarded(working: Project, moment: str) -> None:
    working.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    daemon = working.daemon()
    if moment == "during a run":
        run_id = working.detached("work")
        (worker,) = map(int, working.until_file("begun").read_text().split())
        _sentinel(daemon).kill()
        reason = working.until_status(run_id, "failed")["reason"]
        assert "the sentinel that started it was killed" in reason
        assert worker not in {process.pid for process in working.processes()}
    else:
        working.until_status(working.detached("quick"), "completed")
        sentinel = _sentinel(daemon)
        sentinel.kill()
        working.until(lambda: sentinel.status() == psutil.STATUS_ZOMBIE)
    next_one = working.detached("quick")
    working.until_status(next_one, "completed")
    assert working.owner(next_one) == daemon.process.pid
    # And the new one stands guard: what it started goes with the daemon.
    (working.root / "begun").unlink(missing_ok=True)
    working.detached("work")
    (worker,) = map(int, working.until_file("begun").read_text().split())
    daemon.end(signal.SIGKILL)
    working.until(lambda: worker not in {process.pid for process in working.processes()})


def _sentinel(daemon: Daemon) -> psutil.Process:
    children = psutil.Process(daemon.process.pid).children()
    (found,) = [child for child in children if any("sidecar.agents.sentinel" in word for word in child.cmdline())]
    return found


def test_it_does_not_resume_what_was_stopped_or_aborted_or_begun_in_a_terminal(working: Project) -> None:
    steps = [
        {"id": "a", "type": "shell_command", "command": "echo $$ >> begun; until test -e go-a; do sleep 0.05; done"},
        {"id": "b", "type": "shell_command", "command": "touch b"},
    ]
    working.workflow("two", *steps)
    first = working.daemon()
    stopped = working.detached("two")
    working.until_file("begun")
    working.output("stop", "--run", stopped)
    (working.root / "go-a").touch()
    working.until_status(stopped, "stopped")
    aborted = working.detached("work")
    working.output("abort", "enough", "--run", aborted, "--wait")
    terminal = working.start("flow", "run", "work")
    working.until(lambda: len((working.root / "begun").read_text().split()) == 3)
    terminal.send_signal(signal.SIGINT)
    assert terminal.wait(DEADLINE_S) == 130
    (begun,) = [run["run_id"] for run in working.runs() if run["status"] == "interrupted"]
    first.end()
    second = working.daemon()  # it is ready when all that is to be resumed runs
    assert "resumed" not in second.printed
    statuses = {run["run_id"]: run["status"] for run in working.runs()}
    assert statuses == {stopped: "stopped", aborted: "aborted", begun: "interrupted"}


def test_an_abort_that_came_meanwhile_ends_what_would_be_resumed(working: Project) -> None:
    daemon = working.daemon()
    run_id = working.detached("work")
    working.until_file("begun")
    daemon.end()
    working.output("abort", "not any more")
    working.daemon()
    assert working.only_run()["status"] == "aborted"
    receipt = json.loads((working.state / ".abort.receipt.json").read_text())
    assert receipt["runs"] == [{"run_id": run_id, "status": "aborted"}]
    assert not (working.state / ".abort").exists()


@pytest.mark.anyio
async def test_an_abort_ends_an_idle_run_that_an_agent_drives(project: Project, era: str) -> None:
    project.workflow("steps", {"id": "a", "type": "agent", "prompt": "do it"})
    project.daemon()
    async with project.client(era) as client:
        started = await client.call_tool("workflow_start", {"workflow": "steps"})
        run_id = (started.structured_content or {})["workflow_id"]
        await client.call_tool("workflow_get_next_step", {"workflow_id": run_id})
        (project.state / "runs" / run_id / ".abort").write_text("a person changed her mind\n")
        project.until_status(run_id, "aborted")
        after = await client.call_tool("workflow_get_next_step", {"workflow_id": run_id})
    assert after.structured_content == {"step": None, "status": "aborted", "reason": "a person changed her mind"}
    assert not (project.state / "runs" / run_id / ".abort").exists()


def test_settings_are_read_again_on_sighup_and_wrong_ones_are_not_taken(project: Project) -> None:
    for name in ("one", "two"):
        content = {"description": name, "adapter": "command", "command": ["sh", "-c", f"cat >/dev/null; echo {name}"]}
        (project.state / "agents" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    project.workflow(
        "ask",
        {"id": "a", "type": "agent", "prompt": "who?", "state_update": {"path": "raw.who"}},
        {"id": "b", "type": "shell_command", "command": "echo {{ who }} >> who"},
        state_schema={"raw": {"who": "string"}},
    )
    (project.state / "config.yaml").write_text("default_agent: one\n")
    daemon = project.daemon()
    project.until_status(project.detached("ask"), "completed")
    (project.state / "config.yaml").write_text("default_agent: two\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until_printed("read the settings")
    project.until_status(project.detached("ask"), "completed")
    (project.state / "config.yaml").write_text("default_agnet: three\n")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until_printed("stay as they were")
    (project.state / "config.yaml").write_text("default_agent: two\n")  # for the client, who reads them, too
    project.until_status(project.detached("ask"), "completed")
    assert (project.root / "who").read_text().split() == ["one", "two", "two"]


@pytest.mark.anyio
async def test_several_projects_have_one_process_and_one_that_cannot_be_served_harms_no_other(
    working: Project, tmp_path: Path
) -> None:
    other = type(working)(tmp_path / "other")
    other.workflow("quick", {"id": "a", "type": "shell_command", "command": "pwd > here"})
    broken = tmp_path / "broken"
    (broken / ".swissarmyhammer").mkdir(parents=True)
    (broken / ".swissarmyhammer" / "sidecar.db").write_text("no database")
    roots = (working.root, other.root, broken)
    daemon = working.daemon(*(word for root in roots for word in ("--project", str(root))))
    for root in roots[:2]:
        daemon.until_printed(f"the daemon of {root} is process")
    daemon.until_printed(str(broken / ".swissarmyhammer" / "sidecar.db"))
    first, second = working.detached("work"), other.detached("quick")
    assert working.owner(first) == other.owner(second) == daemon.process.pid
    other.until_status(second, "completed")
    assert (other.root / "here").read_text().strip() == str(other.root)
    async with other.client("2026-07-28") as client:
        told = (await client.call_tool("workflow_status", {})).structured_content or {}
    assert [run["run_id"] for run in told["runs"]] == [second]
    assert daemon.end() == 0
    assert working.only_run()["status"] == "interrupted"


def test_the_projects_may_be_a_setting(working: Project, tmp_path: Path) -> None:
    other = type(working)(tmp_path / "other")
    settings = Path(os.environ["HOME"]) / ".config" / "sidecar" / "config.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(yaml.safe_dump({"projects": [str(working.root), str(other.root)]}))
    daemon = working.daemon()
    for each in (working, other):
        daemon.until_printed(f"the daemon of {each.root} is process")


def _socket(daemon: Daemon) -> socket.socket:
    connected = sockets.connect(daemon.project.state / "sidecar.sock")
    connected.settimeout(DEADLINE_S)
    return connected


@pytest.mark.anyio
async def test_it_survives_what_clients_do(working: Project) -> None:
    daemon = working.daemon()
    for _ in range(200):
        with _socket(daemon) as connected:
            connected.sendall(b'{"half a ')
    with _socket(daemon) as garbage:
        garbage.sendall(bytes(range(256)) * 50 + b"\n" + b"[" * 100_000 + b"\n")
    with sockets.connect(working.state / "handover.sock") as garbage:
        garbage.sendall(b"[" * 100_000 + b"\n")
        assert garbage.recv(1) == b""
    with sockets.connect(working.state / "handover.sock") as wrong:
        wrong.sendall(b'["no run"]\n')
        assert "error" in json.loads(wrong.makefile().readline())
    # One dies in the middle of its call: its run goes on.
    call = {"name": "flow", "arguments": {"flow_name": "work"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    with _socket(daemon) as dying:
        dying.sendall(
            b"".join(
                json.dumps(message).encode() + b"\n"
                for message in (
                    {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO},
                    {"jsonrpc": "2.0", "method": "notifications/initialized"},
                    request,
                )
            )
        )
        working.until_file("begun")
    async with working.client("legacy") as client:
        (run,) = ((await client.call_tool("workflow_status", {})).structured_content or {})["runs"]
        assert run["status"] == "running"
        (working.root / "go").touch()
        working.until_status(run["run_id"], "completed")
    working.until(lambda: psutil.Process(daemon.process.pid).num_fds() < 60)


@pytest.mark.anyio
@pytest.mark.parametrize("place", ["0", "[::1]:0"])
async def test_http_is_served_too_and_beyond_this_machine_only_with_a_token(project: Project, place: str) -> None:
    project.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    assert "needs a token" in project.output("daemon", "--http", "0.0.0.0:0", code=2)
    assert "takes HOST:PORT" in project.output("daemon", "--http", "here", code=2)
    daemon = project.daemon("--http", place)
    (address,) = re.findall(r"MCP at ([^\s\"]+)", daemon.printed)
    with anyio.fail_after(DEADLINE_S):
        async with Client(streamable_http_client(address)) as client:
            result = await client.call_tool("flow", {"flow_name": "quick"})
    assert (result.structured_content or {})["status"] == "completed"


def test_old_runs_go_with_their_directories(project: Project) -> None:
    project.workflow("quick", {"id": "a", "type": "shell_command", "command": "true"})
    for _ in range(3):
        project.output("flow", "run", "quick")
    newest = project.runs()[0]["run_id"]
    (project.state / "config.yaml").write_text("keep_runs: 1\n")
    project.daemon()
    project.until(lambda: os.listdir(project.state / "runs") == [newest])
    assert [run["run_id"] for run in project.runs()] == [newest]


@pytest.mark.anyio
async def test_a_project_may_lie_deeper_than_a_socket_address_is_long(tmp_path: Path, working: Project) -> None:
    deep = type(working)(tmp_path.joinpath(*["a-directory-with-a-long-name"] * 5, "project"))
    answers = ("workflow_status", {"workflow_id": "$RUN"})
    deep.calling_agent("caller", "once", "answer", answers)
    deep.workflow("work", {"id": "a", "type": "agent", "agent": "caller", "prompt": "go"})
    daemon = deep.daemon()
    try:
        run_id = deep.detached("work")
        deep.until_status(run_id, "completed")
        assert deep.owner(run_id) == daemon.process.pid
        (line,) = (deep.root / "answer").read_text().splitlines()
        told: dict[str, Any] = json.loads(line)
        assert told["structuredContent"]["runs"][0]["status"] == "running"
    finally:
        deep.close()


@pytest.mark.anyio
async def test_a_question_is_answered_through_the_daemon_and_a_stage_by_whoever_knows_the_run(
    project: Project,
) -> None:
    project.workflow(
        "ask",
        {"id": "a", "type": "user_input", "prompt": "which?", "state_update": {"path": "raw.which"}},
        {"id": "b", "type": "shell_command", "command": f"echo {{{{ which }}}} > which; {WORKING}"},
        state_schema={"raw": {"which": "string"}},
    )
    project.daemon()
    async with project.client("legacy") as client:
        asked = (await client.call_tool("flow", {"flow_name": "ask"})).structured_content or {}
        assert asked["status"] == "paused"
        run_id = asked["run_id"]
        answered = await client.call_tool("workflow_resume", {"workflow_id": run_id, "answer": "that one"})
        assert not answered.is_error
        assert project.until_file("which").read_text() == "that one\n"
        project.until_file("begun")
        gate = {"stage": "half", "output": "so far", "run_id": run_id}
        submitted = await client.call_tool("stage_gate", gate)
        assert (submitted.structured_content or {})["pause_required"] is True
        assert project.until_status(run_id, "paused")["needs"]["stage"] == "half"
