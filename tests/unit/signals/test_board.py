"""The board: what is asked of a run now. The first part reads like the seed's StopSignal."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sidecar.model import ulid
from sidecar.signals import files, run_lock
from sidecar.signals.board import Board, SignalScope


class Place:
    """A project, a workspace and a run, with a board for the run."""

    def __init__(self, root: Path) -> None:
        self.project = root / ".swissarmyhammer"
        self.workspace = self.project / "workspaces" / "my-task"
        self.run_id = ulid.new()
        self.run = self.project / "runs" / self.run_id
        for directory in (self.workspace, self.run):
            directory.mkdir(parents=True)
        self.reported: list[str] = []
        self.now = 0.0  # seconds added to the real clock
        self.elapsed_s = 0.0  # likewise, to the one that nobody can set
        directories = (str(self.project), str(self.workspace), str(self.run))
        self.scope = SignalScope(self.run_id, directories)
        self.board = self.new_board()

    def source(self) -> str | None:
        """Who asked for the stop, if anybody did."""
        return self.board.stop.source if self.board.stop is not None else None

    def new_board(self) -> Board:
        return Board(
            self.scope,
            report=self.reported.append,
            clock=lambda: time.time() + self.now,
            elapsed=lambda: time.monotonic() + self.elapsed_s,
        )


def standing(directory: Path) -> frozenset[str]:
    """What a start finds there now."""
    return frozenset(files.occurrences(str(directory)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- as seed 002 has it: init, is_stop_requested, toggle, get_state, cleanup


def test_toggle_requests_a_stop_and_toggle_again_takes_it_back(place: Place) -> None:
    place.board.toggle()
    assert place.source() == "keyboard"
    assert (place.run / ".stop").exists()
    place.board.toggle()
    assert place.source() is None
    assert not (place.run / ".stop").exists()


def test_cleanup_removes_the_runs_own_stop_and_can_be_repeated(place: Place) -> None:
    place.board.toggle()
    place.board.cleanup()
    place.board.cleanup()
    assert not (place.run / ".stop").exists()
    assert place.board.stop is None


def test_a_stop_that_cannot_be_written_is_reported_and_still_counts(place: Place) -> None:
    os.rmdir(place.run)
    place.board.toggle()
    assert place.source() == "keyboard"
    assert place.board.any_present()
    assert len(place.reported) == 1
    assert str(place.run) in place.reported[0]
    place.board.toggle()
    assert place.board.stop is None
    place.board.cleanup()


def test_a_stop_that_cannot_be_removed_is_reported_and_does_not_raise(place: Place) -> None:
    (place.run / ".stop").mkdir()
    (place.run / ".stop" / "inside").touch()
    place.board.toggle()
    place.board.cleanup()
    assert place.reported
    assert place.board.stop is None


# --- cancel, sources, refusals


def test_the_first_source_is_the_one_that_is_shown(place: Place) -> None:
    place.board.toggle()
    (place.project / ".stop").touch()
    place.board.refresh()
    assert place.source() == "keyboard"
    (place.run / ".stop").unlink()
    place.board.refresh()
    assert place.source() == "file"


def test_a_new_wider_stop_is_not_covered_by_an_earlier_refusal(place: Place) -> None:
    (place.workspace / ".stop").write_text("everybody out")
    place.board.toggle()
    (place.workspace / ".stop").write_text("I said: everybody out")
    place.board.refresh()
    assert place.board.stop is not None


# --- aborts


def test_an_abort_once_seen_is_latched(place: Place) -> None:
    (place.project / ".abort").write_text("enough")
    place.board.refresh()
    (place.project / ".abort").unlink()
    place.board.refresh()
    assert place.board.abort is not None
    assert place.board.abort.reason == "enough"
    assert place.board.any_present()


@pytest.mark.parametrize("again", ["touched", "written over", "replaced"])
def test_an_abort_from_before_the_start_that_comes_again_is_for_the_run(place: Place, again: str) -> None:
    abort = place.project / ".abort"
    abort.write_text("why\n")
    os.utime(abort, (0, 0))
    board = Board(replace(place.scope, standing=standing(place.project)))
    if again == "replaced":
        files.write(str(place.project), "abort", "why", files.new_trailers())
    elif again == "touched":
        os.utime(abort)
    else:
        abort.write_text("why\n")
    board.refresh()
    assert board.abort is not None


def test_an_abort_right_after_the_start_is_for_the_run_although_the_clock_of_files_lags_behind(tmp_path: Path) -> None:
    for _ in range(200):
        run_id = ulid.new()
        with run_lock.begin(str(tmp_path), run_id, workspace=str(tmp_path), driver="server"):
            mark = run_lock.mark(str(tmp_path), run_id)
            assert mark is not None
            board = Board(SignalScope(run_id, (str(tmp_path),), mark.standing))
            (tmp_path / ".abort").touch()
            board.refresh()
            assert board.abort is not None
            (tmp_path / ".abort").unlink()


@pytest.mark.parametrize("kind", ["stop", "abort"])
def test_a_signal_for_another_run_is_not_for_this_one(place: Place, kind: files.Kind) -> None:
    files.write(str(place.project), kind, "that one", files.new_trailers(run_id=ulid.new()))
    place.board.refresh()
    assert (place.board.stop, place.board.abort) == (None, None)


@pytest.mark.parametrize("kind", ["stop", "abort"])
def test_an_expired_signal_is_not_applied(place: Place, kind: files.Kind) -> None:
    written = files.new_trailers()
    written.expires_at = files.timestamp(time.time() + 60)
    files.write(str(place.project), kind, "while it lasts", written)
    place.now = 120
    place.board.refresh()
    assert (place.board.stop, place.board.abort) == (None, None)
    place.now = 0
    place.board.refresh()
    assert place.board.stop or place.board.abort


def test_a_stop_with_a_timeout_becomes_an_abort(place: Place) -> None:
    files.write(str(place.workspace), "stop", "please", files.new_trailers(timeout_s=300))
    place.board.refresh()
    place.now = 301  # somebody set the clock: no time has passed
    place.board.refresh()
    assert place.board.abort is None
    place.now, place.elapsed_s = -3600, 301
    place.board.refresh()
    assert place.board.abort is not None
    assert place.board.abort.reason == "please (not stopped within 300 s)"


# --- waiting


@pytest.mark.anyio
async def test_a_look_that_finds_nothing_new_wakes_nobody(place: Place) -> None:
    (place.run / ".stop").touch()
    place.board.refresh()
    woken = []

    async def wait() -> None:
        await place.board.wait_changed()
        woken.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        place.board.refresh()
        await anyio.wait_all_tasks_blocked()
        assert not woken
        (place.run / ".stop").unlink()
        place.board.refresh()
    assert woken


def test_the_key_against_a_wider_stop_refuses_it_for_this_run_only(place: Place) -> None:
    (place.workspace / ".stop").write_text("everybody out")
    other = place.new_board()
    place.board.toggle()
    assert place.board.stop is None
    assert (place.workspace / ".stop").exists()
    other.refresh()
    assert other.stop is not None
