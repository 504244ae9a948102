"""Graceful stop of an iteration loop by file and by command: it ends after the iteration, and never in one."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.kit import SIDECAR

if TYPE_CHECKING:
    from tests.acceptance.iterate.conftest import WorkspaceProject

SHELL = "/bin/sh"


def test_a_stop_file_lets_the_iteration_finish_and_then_ends_the_run_which_can_be_resumed(
    project: WorkspaceProject,
) -> None:
    """Seed 002: a stop by file is graceful: it is seen at once, and obeyed between two iterations."""
    process = project.iterate()
    project.wait_for_turn()
    (project.workspace / ".stop").write_text("Tests are red\n")
    project.until(lambda: _requested(project))
    project.report(progress={"completed": 1, "total": 2})
    code, out, err = project.finished(process)
    run = project.last()
    assert (code, run.status, run.reason, project.turns()) == (0, "stopped", "Tests are red", 1)
    assert "stop requested, after this iteration, by file" in out
    assert f"to continue: sidecar resume {run.run_id}" in err
    assert not (project.workspace / ".stop").exists()
    receipt = json.loads((project.workspace / ".stop.receipt.json").read_text())
    assert (receipt["state"], receipt["runs"]) == ("applied", [{"run_id": run.run_id, "status": "stopped"}])
    resumed = project.start("resume", run.run_id)
    project.report(complete=True)
    assert project.finished(resumed)[0] == 0
    assert [event.data["iteration"] for event in project.last_events("iteration")] == [1, 2]


def test_a_stop_file_that_is_deleted_in_time_is_a_cancelled_stop(project: WorkspaceProject) -> None:
    """Seed 002: who deletes the file takes the stop back."""
    process = project.iterate()
    project.wait_for_turn()
    (project.workspace / ".stop").touch()
    project.until(lambda: _requested(project))
    (project.workspace / ".stop").unlink()
    project.report(worked=True)
    project.report(complete=True)
    code, out, _ = project.finished(process)
    assert (code, project.last().status, project.turns()) == (0, "completed", 2)
    assert "stop cancelled" in out


def test_the_stop_command_says_what_it_did_and_stops_the_loop(project: WorkspaceProject) -> None:
    """Seed 002: the stop command, its words, and exit code 0."""
    process = project.iterate()
    project.wait_for_turn()
    code, out, _ = project.run("stop", "my-task", "--reason", "enough for today")
    assert code == 0
    assert "Stop signal sent to workspace: my-task" in out
    assert "Workspace will stop after current iteration completes" in out
    project.report(worked=True)
    code, _, err = project.finished(process)
    assert (code, project.last().status, project.turns()) == (0, "stopped", 1)
    assert "enough for today" in err


def test_a_stop_file_from_before_prevents_the_first_iteration_and_is_gone_then(project: WorkspaceProject) -> None:
    """Seed 002: a file that is there at the start counts; here it prevents the first iteration."""
    (project.workspace / ".stop").write_text("not today\n")
    code, _, err = project.finished(project.iterate())
    assert (code, project.last().status, project.turns()) == (0, "stopped", 0)
    assert "was there before the first step" in err
    assert "not today" in err
    assert "sidecar stop --cancel" in err
    process = project.iterate()
    project.report(complete=True)
    assert project.finished(process)[0] == 0


def test_a_stop_in_the_last_iteration_does_not_meet_the_next_run(project: WorkspaceProject) -> None:
    """Seed 002: the file is never kept for a later run."""
    process = project.iterate()
    project.wait_for_turn()
    (project.workspace / ".stop").touch()
    project.report(complete=True)
    assert project.finished(process)[0] == 0
    assert not (project.workspace / ".stop").exists()


@pytest.mark.parametrize("way", ["failed", "interrupted"])
def test_a_run_that_ends_otherwise_takes_its_stop_along(project: WorkspaceProject, way: str) -> None:
    """Seed 002: the file is removed also where an error ends the run. One that SIGTERM interrupts has not ended: its
    stop meets whoever goes on with it."""
    process = project.iterate()
    project.wait_for_turn()
    (project.workspace / ".stop").touch()
    project.until(lambda: _requested(project))
    if way == "failed":
        project.tell("exit 1")
    else:
        process.terminate()
    code, _, _ = project.finished(process)
    assert (code, project.last().status) == ({"failed": 2, "interrupted": 143}[way], way)
    assert (project.workspace / ".stop").exists() == (way == "interrupted")


def test_without_a_terminal_no_key_is_heard_and_the_file_works_all_the_same(project: WorkspaceProject) -> None:
    """Seed 002: keys only from a terminal, files in every mode."""
    read, write = os.pipe()
    os.write(write, b"s\nS\n")
    process = project.iterate(stdin=read)
    os.close(read)
    project.report(worked=True)
    project.wait_for_turn()
    assert "stop" not in _log(project)
    (project.workspace / ".stop").touch()
    project.report(worked=True)
    assert project.finished(process)[0] == 0
    assert (project.last().status, project.turns()) == ("stopped", 2)
    os.close(write)


def test_a_run_needs_no_standard_input_at_all(project: WorkspaceProject) -> None:
    """Seed 002: a keyboard that cannot be had ends nothing."""
    command = [SHELL, "-c", 'exec "$0" iterate my-task -p delay=0s <&-', SIDECAR]
    process = subprocess.Popen(command, cwd=project.root, env=project.environment, stderr=subprocess.PIPE, text=True)
    project.report(complete=True)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_stop_file_has_the_permissions_that_the_umask_leaves(
    project: WorkspaceProject, umask: int, mode: int
) -> None:
    """Seed 002: made with the user's umask."""
    command = [SHELL, "-c", f'umask {umask:o}; exec "$0" stop my-task', SIDECAR]
    subprocess.run(command, cwd=project.root, env=project.environment, stdout=subprocess.DEVNULL, check=True)
    assert (project.workspace / ".stop").stat().st_mode & 0o777 == mode


def test_an_abort_file_ends_the_agent_in_the_middle_of_its_iteration(project: WorkspaceProject) -> None:
    process = project.iterate()
    project.wait_for_turn()
    (project.workspace / ".abort").write_text("the wrong branch\n")
    code, _, _ = project.finished(process)
    assert (code, project.last().status, project.last().reason) == (2, "aborted", "the wrong branch")
    receipt = json.loads((project.workspace / ".abort.receipt.json").read_text())
    assert (receipt["state"], receipt["survivors"]) == ("applied", 0)
    assert receipt["processes"]


def _requested(project: WorkspaceProject) -> bool:
    """The owner has seen the stop: it said so in the run's log."""
    return "stop requested" in _log(project)


def _log(project: WorkspaceProject) -> str:
    return (project.state / "runs" / project.last().run_id / "run.log").read_text()
