"""Who is running: exactly one owner, known by its lock, gone the moment that it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar import layout
from sidecar.errors import SidecarError, StoreError
from sidecar.model import ulid
from sidecar.signals import run_lock
from sidecar.signals.run_lock import RunLock, is_live, live_runs, open_runs

OWNER = """
import sys
from sidecar.signals.run_lock import RunLock
lock = RunLock(sys.argv[1], sys.argv[2])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def owner(root: str, run_id: str) -> subprocess.Popen[str]:
    """A process that holds a run's lock until its input is closed or it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, root, run_id], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def begun(root: str, run_id: str, workspace: str | None = None) -> RunLock:
    return run_lock.begin(root, run_id, workspace=workspace, driver="server")


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return os.path.realpath(tmp_path)


def test_a_run_is_live_while_its_lock_is_held_and_no_longer(root: str) -> None:
    run_id = ulid.new()
    assert not is_live(root, run_id)
    with begun(root, run_id):
        assert is_live(root, run_id)
        assert live_runs(root) == [run_id]
    assert not is_live(root, run_id)
    assert live_runs(root) == []
    assert open_runs(root) == [run_id]


def test_another_process_is_seen_and_its_death_by_kill_9_frees_the_run(root: str) -> None:
    run_id = ulid.new()
    process = owner(root, run_id)
    try:
        assert is_live(root, run_id)
        with pytest.raises(SidecarError, match=f"run {run_id} is already being executed, by process {process.pid}$"):
            RunLock(root, run_id).acquire()
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        assert not is_live(root, run_id)
        with RunLock(root, run_id):
            assert is_live(root, run_id)
    finally:
        end(process)


def test_a_child_of_the_owner_does_not_keep_a_dead_run_alive(root: str) -> None:
    run_id = ulid.new()
    lock = RunLock(root, run_id)
    lock.acquire()
    code = "print('running', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "running\n"
        lock.release()
        assert not is_live(root, run_id)
    finally:
        child.communicate("\n")


def test_runs_are_listed_newest_first_and_by_workspace(root: str) -> None:
    first, second, third = ("0" * 25 + digit for digit in "123")
    with begun(root, first, f"{root}/a"), begun(root, second, f"{root}/b"), begun(root, third):
        assert live_runs(root) == [third, second, first]
        assert live_runs(root, workspace=f"{root}/a") == [first]
        assert live_runs(root, workspace=f"{root}/none") == []
    assert open_runs(root, workspace=f"{root}/b") == [second]


@pytest.mark.parametrize("name", ["plain", "with\nnewline", os.fsdecode(b"not-utf-8-\xff"), "x" * 200])
def test_the_workspace_is_known_whatever_its_path(root: str, name: str) -> None:
    run_id = ulid.new()
    workspace = f"{root}/{name}"
    with begun(root, run_id, workspace):
        assert live_runs(root, workspace=workspace) == [run_id]


def test_what_stands_there_at_a_beginning_is_recorded_and_replaced_at_the_next_one(tmp_path: Path) -> None:
    root, run_id = str(tmp_path), ulid.new()
    state = tmp_path / ".swissarmyhammer"
    state.mkdir()
    (state / ".abort").touch()
    begun(root, run_id).release()
    before = mark_of(root, run_id)
    assert len(before.standing) == 1
    (state / ".abort").unlink()
    assert run_lock.keep_open(root, run_id, workspace=None, driver="agent").standing == before.standing
    assert mark_of(root, run_id).driver == "agent"
    run_lock.end(root, run_id)
    run_lock.begin_again(root, run_id, workspace=None, driver="server")
    assert not mark_of(root, run_id).standing


def mark_of(root: str, run_id: str) -> run_lock.Mark:
    found = run_lock.mark(root, run_id)
    assert found is not None
    return found


def test_a_run_whose_mark_was_deleted_takes_nothing_for_older_than_itself(root: str) -> None:
    run_id = ulid.new()
    os.makedirs(layout.state_directory(root))
    open(os.path.join(layout.state_directory(root), ".abort"), "w").close()
    begun(root, run_id).release()
    os.unlink(os.path.join(layout.run_directory(root, run_id), "open"))
    assert not run_lock.keep_open(root, run_id, workspace=None, driver="server").standing
    assert open_runs(root) == [run_id]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_an_odd_thing_in_the_locks_place_is_no_owner_and_never_blocks(root: str, make: Callable[[str], None]) -> None:
    run_id = ulid.new()
    os.makedirs(layout.run_directory(root, run_id))
    make(os.path.join(layout.run_directory(root, run_id), "lock"))
    code = "import sys; from sidecar.signals.run_lock import is_live; print(is_live(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, root, run_id]  # a process of its own can be ended if it blocks
    assert subprocess.run(command, capture_output=True, timeout=30, check=True).stdout == b"False\n"


def test_somebody_who_only_looks_does_not_keep_an_owner_from_starting(root: str) -> None:
    run_id = ulid.new()
    with RunLock(root, run_id):
        pass
    done = False

    def look_all_the_time() -> None:
        while not done:
            is_live(root, run_id)

    looker = threading.Thread(target=look_all_the_time)
    looker.start()
    try:
        for _ in range(200):
            with RunLock(root, run_id):
                assert is_live(root, run_id)
    finally:
        done = True
        looker.join()


def test_runs_that_have_ended_are_not_even_looked_at(root: str) -> None:
    """Otherwise `sidecar stop` would get slower with every run that ever was."""
    over, live = ulid.new(), ulid.new()
    with begun(root, over):
        run_lock.end(root, over)
    with begun(root, live):
        assert os.listdir(layout.open_directory(root)) == [live]
        assert open_runs(root) == [live]
        run_lock.end(root, live)
    assert os.listdir(layout.open_directory(root)) == []


def test_a_lock_that_cannot_be_written_is_told_as_an_error_of_ours_and_leaves_nothing_open(root: str) -> None:
    run_id = ulid.new()
    os.makedirs(layout.run_directory(root, run_id))
    os.mkdir(os.path.join(layout.run_directory(root, run_id), "lock"))  # not even root can open that for writing
    before = os.listdir("/dev/fd")
    with pytest.raises(StoreError, match=f"{run_id} cannot be executed, its lock cannot be written: .*/lock: Is a dir"):
        RunLock(root, run_id).acquire()
    assert os.listdir("/dev/fd") == before


def test_an_entry_that_a_crash_left_behind_makes_no_run_open(root: str) -> None:
    run_id = ulid.new()
    with begun(root, run_id):
        run_lock.end(root, run_id)
    open(os.path.join(layout.open_directory(root), run_id), "w").close()
    assert open_runs(root) == []
