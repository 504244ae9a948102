"""`--detach` and `logs`: a run that outlives the command that began it, and is followed from elsewhere."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from tests.kit import Project


def owner(flows: Project, run_id: str) -> int:
    return int((flows.directory(run_id) / "lock").read_text().split("\n")[0])


def test_a_detached_run_goes_on_by_itself_and_its_log_is_followed_to_the_end(flows: Project) -> None:
    code, out, err = flows.run("flow", "run", "counting", "--detach")
    run_id = flows.journalled()[0].run_id
    assert (code, err) == (0, "")
    assert f"sidecar logs {run_id} -f" in out
    process = psutil.Process(owner(flows, run_id))
    assert os.getsid(process.pid) not in (os.getsid(0), 0)
    assert process.ppid() != os.getpid()
    flows.until_exists("at-0")
    following = flows.start_into("followed", "logs", run_id, "-f")
    events = flows.start("logs", run_id, "-f", "--json")
    flows.until(lambda: any("started counting" in line for line in flows.lines("followed")))
    flows.touch("go")
    assert flows.finished(following)[0] == 0
    lines = flows.lines("followed")
    assert lines[-1].endswith(" completed")
    assert sum("iteration" in line for line in lines) == 3
    kinds = [json.loads(line)["kind"] for line in flows.finished(events)[1].splitlines()]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_ended")
    assert (flows.directory(run_id) / "run.log").read_text().splitlines() == lines
    flows.until(lambda: flows.tagged() == [])


def test_a_detached_run_keeps_the_environment_of_whoever_began_it(flows: Project) -> None:
    flows.environment["COLOUR"] = "blue"
    flows.workflow(
        "env", {"type": "shell_command", "command": "until [ -e go ]; do sleep 0.02; done; echo $COLOUR > seen"}
    )
    run_id = flows.run("flow", "run", "env", "--detach", "-q")[1].strip()
    owner_pid = owner(flows, run_id)
    os.kill(owner_pid, signal.SIGTERM)
    flows.until(lambda: flows.journalled()[0].status == "interrupted")
    flows.touch("go")
    flows.environment["COLOUR"] = "red"
    flows.until(lambda: not psutil.pid_exists(owner_pid))
    run = flows.json("resume", run_id, "--detach", "--json")
    assert run["run_id"] == run_id
    flows.until(lambda: flows.journalled()[0].status == "completed")
    assert flows.lines("seen") == ["blue"]
    flows.until(lambda: flows.tagged() == [])


def test_a_detached_answer_goes_on_without_the_terminal(flows: Project) -> None:
    flows.workflow(
        "asking",
        {"id": "ask", "type": "user_input", "prompt": "Name?", "state_update": {"path": "raw.name"}},
        {"id": "write", "type": "shell_command", "command": "echo {{ name }} > seen"},
        state_schema={"raw": {"name": "string"}},
    )
    run_id = flows.run("flow", "run", "asking", "--detach", "-q")[1].strip()
    flows.until(lambda: flows.journalled()[0].status == "paused" and flows.tagged() == [])
    assert flows.run("answer", run_id, "Ada L.", "--detach", "-q") == (0, f"{run_id}\n", "")
    flows.until(lambda: flows.journalled()[0].status == "completed")
    assert flows.lines("seen") == ["Ada L."]
    flows.until(lambda: flows.tagged() == [])


def test_what_keeps_a_detached_run_from_beginning_is_told(flows: Project) -> None:
    flows.workflow("bad", {"id": "bad", "type": "shell_command", "command": "exit 1"})
    assert flows.run("flow", "run", "bad", "-q")[0] == 2
    flows.workflow("bad", {"id": "other", "type": "shell_command", "command": "exit 1"})
    code, out, err = flows.run("resume", flows.journalled()[0].run_id, "--detach", "--with-changes")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is not executed: " in err
    assert "'bad'" in err
    assert "ended before it had begun" not in err
    flows.until(lambda: flows.tagged() == [])


def test_following_ends_when_the_owner_is_killed(flows: Project) -> None:
    run_id = flows.run("flow", "run", "counting", "--detach", "-q")[1].strip()
    flows.until_exists("at-0")
    following = flows.start_into("followed", "logs", run_id, "-f")
    flows.until(lambda: flows.lines("followed"))
    os.kill(owner(flows, run_id), signal.SIGKILL)
    assert flows.finished(following)[0] == 0
    flows.until(lambda: flows.tagged() == [])


def test_the_log_of_an_agent_has_what_it_printed(flows: Project) -> None:
    flows.workflow(
        "two",
        {"type": "shell_command", "command": "echo one"},
        {"type": "shell_command", "command": "echo two; echo aside >&2"},
    )
    run_id = flows.json("flow", "two", "--json")["run_id"]
    code, out, _ = flows.run("logs", run_id, "--agent", "2")
    assert (code, sorted(out.splitlines())) == (0, ["aside", "two"])
    code, _, err = flows.run("logs", run_id, "--agent", "3")
    assert (code, "has no process 3; available: 1, 2" in err) == (2, True)


def test_the_lines_of_a_process_come_whole_as_json_and_end_only_at_a_newline(flows: Project) -> None:
    printing = r"head -c 200000 /dev/zero | tr '\0' x; printf '\na\fb\rc\342\200\250d\342\200\251e\302\205f\n\nlast'"
    flows.workflow("odd", {"id": "a", "type": "shell_command", "command": printing})
    run_id = flows.json("flow", "run", "odd", "--json")["run_id"]
    expected = ["x" * 200_000, "a\fb\rc\u2028d\u2029e\x85f", "", "last"]
    for more in ([], ["-f"]):
        code, out, _ = flows.run("logs", run_id, "--agent", "1", "--json", *more)
        assert code == 0
        assert [json.loads(line) for line in out.splitlines()] == [{"line": line} for line in expected]


def test_a_line_that_is_still_being_printed_is_told_when_it_is_whole(flows: Project) -> None:
    printing = "printf begun; touch at; until [ -e go ]; do sleep 0.02; done; echo ' and ended'"
    flows.workflow("slow", {"id": "a", "type": "shell_command", "command": printing})
    process = flows.start("flow", "run", "slow", "-q")
    flows.until_exists("at")
    run_id = flows.journalled()[0].run_id
    log = flows.directory(run_id) / "agents" / "1.log"
    flows.until(lambda: log.read_text() == "begun")
    following = flows.start("logs", run_id, "--agent", "1", "--json", "-f")
    flows.until(lambda: str(log) in [file.path for file in psutil.Process(following.pid).open_files()])
    flows.touch("go")
    assert flows.finished(following)[:2] == (0, '{"line": "begun and ended"}\n')
    assert flows.finished(process)[0] == 0


@pytest.mark.parametrize("number", ["0", "-1"])
def test_processes_are_counted_from_one(flows: Project, number: str) -> None:
    flows.workflow("one", {"id": "a", "type": "shell_command", "command": "true"})
    run_id = flows.json("flow", "run", "one", "--json")["run_id"]
    for more in ([], ["--json"]):
        code, out, err = flows.run("logs", run_id, f"--agent={number}", *more)
        assert (code, out) == (2, "")
        assert f"at least 1, not '{number}'" in err
