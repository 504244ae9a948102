"""A journal that another process has locked for long: agents end all the same, nothing is lost, nothing done twice."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit import Project

WAITS = "another process has locked"
# An owner that waits for the lock first takes 10 s, and is then at its end.
SOON_S = 5.0


@contextmanager
def locked(flows: Project) -> Iterator[None]:
    """The write lock, as a shell of SQLite's or a backup holds it."""
    connection = sqlite3.connect(flows.state / "sidecar.db", timeout=60, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
    finally:
        connection.close()


@pytest.fixture
def working(flows: Project) -> Project:
    flows.workflow(
        "work",
        {"id": "a", "type": "shell_command", "command": "echo $$ >> a; until [ -e go ]; do sleep 0.02; done"},
        {"id": "b", "type": "shell_command", "command": "echo $$ >> b"},
    )
    return flows


def said(flows: Project, name: str, text: str) -> bool:
    return text in (flows.root / name).read_text()


def agent(flows: Project) -> psutil.Process:
    flows.until(lambda: (flows.root / "a").exists() and flows.lines("a"))
    return psutil.Process(int(flows.lines("a")[-1]))


@pytest.mark.parametrize("by", ["file", "command"])
def test_an_abort_ends_the_agent_at_once_and_the_run_when_the_lock_is_free(working: Project, by: str) -> None:
    owner = working.start_into("out", "flow", "run", "work", "--json-events")
    process = agent(working)
    run_id = working.journalled()[0].run_id
    with locked(working):
        began = time.monotonic()
        if by == "file":
            (working.state / ".abort").write_text("enough")
        else:
            assert working.run("abort", "enough")[0] == 0
        working.until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
        assert time.monotonic() - began < SOON_S
        working.until(lambda: said(working, "out", WAITS))
        assert owner.poll() is None
        assert (working.state / ".abort").exists()  # it is consumed when the journal has it
    owner.communicate(timeout=120)
    assert owner.returncode == 2
    assert (working.journalled()[0].status, working.journalled()[0].reason) == ("aborted", "enough")
    assert said(working, "out", "free again")
    kinds = [event.kind for event in working.events(run_id)]
    assert kinds[-2:] == ["agent_ended", "run_ended"]
    assert not (working.state / ".abort").exists()
    assert (working.state / ".abort.receipt.json").exists()


def test_an_abort_ends_agents_at_once_while_what_another_did_waits_for_the_lock(flows: Project) -> None:
    command = "echo $$ > pid-{{ item }}; until [ -e go-{{ item }} ]; do sleep 0.02; done"
    flows.workflow(
        "tasks",
        {"id": "all", "type": "parallel_foreach", "items": [1, 2], "max_parallel": 2, "sub_agent_task": "t"},
        sub_agent_tasks={"t": {"steps": [{"id": "do", "type": "shell_command", "command": command}]}},
    )
    owner = flows.start_into("out", "flow", "run", "tasks", "--json-events")
    paths = [flows.root / "pid-1", flows.root / "pid-2"]
    flows.until(lambda: all(path.exists() and path.read_text().strip() for path in paths))
    done, working = (psutil.Process(int(path.read_text())) for path in paths)
    with locked(flows):
        flows.touch("go-1")
        flows.until(lambda: not done.is_running())  # its end is to be journalled
        began = time.monotonic()
        (flows.state / ".abort").write_text("enough")
        flows.until(lambda: not working.is_running() or working.status() == psutil.STATUS_ZOMBIE)
        assert time.monotonic() - began < SOON_S
    owner.communicate(timeout=120)
    assert (flows.last().status, flows.last().reason) == ("aborted", "enough")


def test_a_step_that_ends_meanwhile_is_neither_lost_nor_done_again(working: Project) -> None:
    owner = working.start_into("out", "flow", "run", "work", "--json-events")
    agent(working)
    with locked(working):
        working.touch("go")
        working.until(lambda: said(working, "out", WAITS))
        assert not (working.root / "b").exists()  # what comes next waits until the journal has what was before
    owner.communicate(timeout=120)
    assert owner.returncode == 0
    assert (len(working.lines("a")), len(working.lines("b"))) == (1, 1)
    kinds = [event.kind for event in working.events(working.journalled()[0].run_id)]
    assert (kinds.count("step_completed"), kinds.count("agent_ended"), kinds[-1]) == (2, 2, "run_ended")


def test_tasks_that_end_meanwhile_are_neither_lost_nor_done_again(flows: Project) -> None:
    command = "echo {{ item }} >> ran; until [ -e go ]; do sleep 0.02; done"
    flows.workflow(
        "tasks",
        {"id": "all", "type": "parallel_foreach", "items": [1, 2, 3], "max_parallel": 2, "sub_agent_task": "t"},
        sub_agent_tasks={"t": {"steps": [{"id": "do", "type": "shell_command", "command": command}]}},
    )
    owner = flows.start_into("out", "flow", "run", "tasks", "--json-events")
    flows.until(lambda: (flows.root / "ran").exists() and len(flows.lines("ran")) == 2)
    with locked(flows):
        flows.touch("go")
        flows.until(lambda: said(flows, "out", WAITS))
    owner.communicate(timeout=120)
    assert owner.returncode == 0
    assert sorted(flows.lines("ran")) == ["1", "2", "3"]


def test_a_second_signal_gives_up_a_lock_that_is_never_released(working: Project) -> None:
    owner = working.start_into("out", "flow", "run", "work", "--json-events")
    agent(working)
    with locked(working):
        owner.send_signal(signal.SIGTERM)
        working.until(lambda: said(working, "out", WAITS))
        owner.send_signal(signal.SIGTERM)
        owner.communicate(timeout=120)
        assert owner.returncode == 143
        assert said(working, "out", '"kind": "run_ended"') or said(working, "out", '"kind":"run_ended"')
        assert working.tagged() == []
    working.touch("go")
    assert working.json("resume", "--json", working.journalled()[0].run_id)["status"] == "completed"
    assert (len(working.lines("a")), len(working.lines("b"))) == (2, 1)
