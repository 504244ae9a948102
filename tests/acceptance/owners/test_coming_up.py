"""A run whose owner has yet to come up is open: every signal that is written meanwhile is for it, whoever else begins
or ends beside it."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

if TYPE_CHECKING:
    from tests.kit import Project

pytestmark = pytest.mark.anyio
HOLD = """
import os, sys, time
if "own" in sys.orig_argv:
    while not os.path.exists(os.environ["SIDECAR_TEST_RELEASE"]):
        time.sleep(0.01)
"""
STARTS = ["flow over MCP", "flow run --detach", "resume --detach"]
SIGNALS = [
    ("abort", "file", "run"),
    ("abort", "file", "project"),
    ("abort", "command", "run"),
    ("abort", "command", "project"),
    ("abort", "tool", "run"),
    ("abort", "tool", "project"),
    ("stop", "command", "run"),
    ("stop", "file", "project"),
    ("stop", "tool", "run"),
]


class Held:
    """A project in which detached owners do not come up until they are let go."""

    def __init__(self, project: Project, place: Path) -> None:
        self.project = project
        self.release = place / "release"
        place.mkdir()
        (place / "sitecustomize.py").write_text(HOLD)
        project.environment |= {"PYTHONPATH": str(place), "SIDECAR_TEST_RELEASE": str(self.release)}
        project.workflow("work", {"id": "work", "type": "shell_command", "command": "echo done >> did"})
        project.workflow("other", {"id": "other", "type": "shell_command", "command": "true"})

    @property
    def did(self) -> bool:
        return (self.project.root / "did").exists()

    def pending(self) -> str:
        """The run that waits for its owner, as soon as it can be seen."""
        found = self.project.until(lambda: [run for run in self.project.journalled() if run.status == "pending"])
        return str(found[0].run_id)

    def stopped_before(self) -> str:
        """A run that was stopped before its first step."""
        self.project.output("stop", "--all")
        self.project.output("flow", "run", "work")
        return str(self.project.only_run()["run_id"])


@pytest.fixture
def held(project: Project, tmp_path: Path) -> Iterator[Held]:
    made = Held(project, tmp_path / "hold")
    yield made
    made.release.touch()


@asynccontextmanager
async def begun(held: Held, how: str) -> AsyncIterator[None]:
    """Somebody asks for a run in this way, and waits for an answer until the end."""
    project = held.project
    if how == "flow over MCP":
        async with project.client("legacy") as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "flow", {"flow_name": "work", "detach": True})
            yield
            return
    words = ["resume", held.stopped_before()] if how == "resume --detach" else ["flow", "run", "work"]
    process = project.start(*words, "--detach")
    yield
    project.until(lambda: process.poll() is not None)


async def write(held: Held, kind: str, how: str, scope: str, run_id: str) -> Path:
    """Write a signal in this way; where it stands."""
    directory = held.project.state / ("" if scope == "project" else f"runs/{run_id}")
    target = ["--run", run_id] if scope == "run" else ["--all"] if kind == "stop" else []
    if how == "file":
        (directory / f".{kind}").write_text("enough\n")
    elif how == "command":
        held.project.output(kind, *target, "--reason", "enough")
    else:
        async with held.project.client("legacy") as client:
            given = {"reason": "enough", **({"run_id": run_id} if scope == "run" else {})}
            answer = (await client.call_tool(kind, given)).structured_content
            assert answer is not None
            assert answer["runs"] == [run_id], answer
    return directory / f".{kind}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every way to start with every way to signal; in the short form each of both."""
    if "scope" in metafunc.fixturenames:
        cases = [(start, *how) for start in STARTS for how in SIGNALS]
        short = [(STARTS[number % len(STARTS)], *how) for number, how in enumerate(SIGNALS)]
        chosen = cases if metafunc.config.getoption("--long") else short
        metafunc.parametrize(("start", "kind", "how", "scope"), chosen)


async def test_a_signal_that_is_written_before_the_owner_is_there_is_for_the_run(
    held: Held, start: str, kind: str, how: str, scope: str
) -> None:
    project = held.project
    async with begun(held, start):
        run_id = await anyio.to_thread.run_sync(held.pending)  # the client's call is on its way meanwhile
        path = await write(held, kind, how, scope, run_id)
        # Another run begins and ends: the signal is none of its business, or not only of its.
        await anyio.to_thread.run_sync(project.start("flow", "run", "other").wait)
        held.release.touch()
    project.until_status(run_id, {"abort": "aborted", "stop": "stopped"}[kind])
    assert not held.did
    project.until(lambda: not path.exists())
    receipt = json.loads(path.with_name(f".{kind}.receipt.json").read_text())
    assert (receipt["state"], receipt["reason"]) == ("applied", "enough")
    assert run_id in [run["run_id"] for run in receipt["runs"]]


async def test_to_wait_for_an_abort_is_to_wait_for_the_owner_that_comes_up(held: Held) -> None:
    async with begun(held, "flow run --detach"):
        run_id = held.pending()
        waiting = held.project.start("abort", "--run", run_id, "--wait=60", "--json")
        held.project.until((held.project.state / "runs" / run_id / ".abort").exists)
        held.release.touch()
    out, err = waiting.communicate(timeout=120)
    assert (waiting.returncode, err) == (0, "")
    assert [run["status"] for run in json.loads(out)["runs"]] == ["aborted"]
    assert not held.did


@pytest.mark.parametrize("kind", ["stop", "abort"])
async def test_a_signal_reaches_what_was_handed_to_a_daemon_that_has_not_got_to_it(project: Project, kind: str) -> None:
    project.workflow("work", {"id": "work", "type": "shell_command", "command": "echo done >> did"})
    daemon = project.daemon()
    daemon.process.send_signal(signal.SIGSTOP)
    asking = project.start("flow", "run", "work", "--detach")
    run_id = project.until(project.journalled)[0].run_id
    project.output(kind, "--run", run_id, "--reason", "enough")
    daemon.process.send_signal(signal.SIGCONT)
    project.until_status(run_id, {"abort": "aborted", "stop": "stopped"}[kind])
    out, _ = asking.communicate(timeout=120)
    assert not (project.root / "did").exists()
    assert not (project.state / "runs" / run_id / f".{kind}").exists()
    assert "continues without" in out or "was not executed" in out


async def test_a_request_that_nobody_answers_is_taken_back_and_executed_by_nobody(project: Project) -> None:
    project.workflow("work", {"id": "work", "type": "shell_command", "command": "echo done >> did"})
    daemon = project.daemon()
    daemon.process.send_signal(signal.SIGSTOP)
    project.environment["SIDECAR_HAND_OVER_WITHIN"] = "1s"
    err = project.output("flow", "run", "work", "--detach", code=2)
    run = project.only_run()
    assert f"run {run['run_id']} is not executed: " in err
    assert run["status"] == "failed"
    daemon.process.send_signal(signal.SIGCONT)
    project.output("flow", "run", "work", "--detach")  # the daemon reads what was asked in order
    project.until(lambda: [one for one in project.journalled() if one.status == "completed"])
    assert (project.root / "did").read_text() == "done\n"
    assert {one["status"] for one in project.runs()} == {"failed", "completed"}
