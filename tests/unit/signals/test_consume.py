"""Consuming a signal: the receipt, and when the file goes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import layout
from sidecar.errors import SignalError
from sidecar.model import ulid
from sidecar.signals import files, receipts, run_lock
from sidecar.signals.board import Board, SignalScope
from sidecar.signals.files import Signal
from sidecar.signals.receipts import clear_stale, consume
from sidecar.signals.run_lock import RunLock


class Project:
    """A project with one workspace, where runs can be made live."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.state = layout.state_directory(self.root)
        self.workspace = os.path.join(self.state, "workspaces", "ws")
        os.makedirs(self.workspace)
        self.locks: dict[str, RunLock] = {}

    def start_run(self, workspace: str | None = None) -> str:
        run_id = ulid.new()
        self.locks[run_id] = run_lock.begin(self.root, run_id, workspace=workspace, driver="server")
        return run_id

    def end_run(self, run_id: str) -> None:
        run_lock.end(self.root, run_id)
        self.locks[run_id].release()

    def signal(self, directory: str, kind: files.Kind = "stop", run_id: str | None = None) -> Signal:
        files.write(directory, kind, "why", files.new_trailers(run_id=run_id))
        found = files.read(directory, kind)
        assert found
        return found

    def board(self, run_id: str) -> Board:
        directories = (self.state, self.workspace, layout.run_directory(self.root, run_id))
        mark = run_lock.mark(self.root, run_id)
        return Board(SignalScope(run_id, directories, mark.standing if mark else frozenset()))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    for lock in project.locks.values():
        lock.release()


def test_the_file_stays_until_the_last_live_run_has_taken_it(project: Project) -> None:
    first, second = project.start_run(), project.start_run(project.workspace)
    signal = project.signal(project.state, "abort")
    assert not consume(project.root, signal, first, "aborted", survivors=0)["removed"]
    assert files.present(signal.path)
    receipt = consume(project.root, signal, second, "aborted")
    assert not files.present(signal.path)
    assert {outcome["run_id"] for outcome in receipt["runs"]} == {first, second}


def test_a_run_that_nobody_executes_is_waited_for_until_it_has_ended(project: Project) -> None:
    first, second = project.start_run(), project.start_run()
    signal = project.signal(project.state)
    project.locks[second].release()
    assert not consume(project.root, signal, first, "stopped")["removed"]
    project.end_run(second)
    assert consume(project.root, signal, first, "stopped")["removed"]


@pytest.mark.parametrize("place", ["run's directory", "Run trailer"])
def test_runs_that_it_is_not_meant_for_have_no_say(project: Project, place: str) -> None:
    project.start_run()
    meant = project.start_run()
    if place == "Run trailer":
        signal = project.signal(project.state, run_id=meant)
    else:
        signal = project.signal(layout.run_directory(project.root, meant))
    assert consume(project.root, signal, meant, "stopped")["removed"]


def test_what_cannot_be_removed_is_an_error_and_the_receipt_stands(project: Project) -> None:
    run_id = project.start_run()
    os.makedirs(os.path.join(project.state, ".stop", "full"))
    signal = files.read(project.state, "stop")
    assert signal
    with pytest.raises(SignalError, match="cannot remove"):
        consume(project.root, signal, run_id, "stopped")
    receipt = receipts.read(signal.path)
    assert receipt
    assert (receipt["state"], receipt["removed"]) == ("applied", False)


def test_a_start_clears_an_older_abort_and_says_so(project: Project) -> None:
    signal = project.signal(project.state, "abort")
    run_id = project.start_run()
    warnings = clear_stale(project.root, project.board(run_id))
    assert len(warnings) == 1
    assert signal.path in warnings[0]
    assert not files.present(signal.path)


def test_a_start_leaves_an_older_abort_that_another_live_run_is_still_to_take(project: Project) -> None:
    project.start_run()
    signal = project.signal(project.state, "abort")
    run_id = project.start_run()
    assert clear_stale(project.root, project.board(run_id)) == []
    assert files.present(signal.path)


def test_a_start_clears_a_stop_that_has_expired(project: Project) -> None:
    written = files.new_trailers()
    written.expires_at = files.timestamp(time.time() - 1)
    path = files.write(project.workspace, "stop", "was for yesterday", written)
    run_id = project.start_run()
    warnings = clear_stale(project.root, project.board(run_id))
    assert not files.present(path)
    assert "expired (was for yesterday)" in warnings[0]


def test_a_leftover_stays_as_long_as_nobody_can_be_told_what_became_of_it(project: Project) -> None:
    signal = project.signal(project.state, "abort")
    run_id = project.start_run()
    os.makedirs(f"{signal.path}{receipts.SUFFIX}/in the way")  # as a disk that is full
    (warning,) = clear_stale(project.root, project.board(run_id))
    assert "cannot write the receipt" in warning
    assert files.present(signal.path)
    os.removedirs(f"{signal.path}{receipts.SUFFIX}/in the way")
    clear_stale(project.root, project.board(run_id))
    receipt = receipts.read(signal.path)
    assert receipt is not None
    assert (receipt["state"], receipt["removed"], files.present(signal.path)) == ("expired", True, False)
