"""Writers and clearers killed with SIGKILL, or overtaken by a newer signal, at each of their system calls.

A driver process forks one child per case. The child wraps every call of `os` and `fcntl` that the signal files go
through, counts them, and at the chosen one kills itself or lets somebody else write a newer signal. Real files,
real kills, and no tracer needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DRIVER = r'''
import fcntl, json, os, signal, sys

from sidecar.signals import files
from sidecar.signals.files import Trailers

CALLS = ["open", "write", "fsync", "close", "rename", "link", "unlink", "rmdir", "lstat", "fstat", "read"]
LONG = "x" * 20_000  # more than fits into a few blocks: a part of it would be seen


class Hook:
    """Counts calls; before the call of a given number it does what was asked for."""

    def __init__(self, actions, hard_links):
        self.actions, self.hard_links, self.names, self.busy = actions, hard_links, [], False

    def install(self):
        for module, name in [(os, name) for name in CALLS] + [(fcntl, "flock")]:
            setattr(module, name, self.wrapped(name, getattr(module, name)))

    def wrapped(self, name, real):
        def call(*arguments, **keywords):
            if self.busy:
                return real(*arguments, **keywords)
            self.point(name)
            if name == "write":  # in two parts, so that one can be missing
                return real(arguments[0], bytes(arguments[1])[: max(1, len(arguments[1]) // 2)])
            if name == "link" and not self.hard_links:
                os.stat(arguments[0], dir_fd=keywords["src_dir_fd"], follow_symlinks=False)
                raise PermissionError(1, "Operation not permitted")
            return real(*arguments, **keywords)

        return call

    def point(self, name):
        self.names.append(name)
        action = self.actions.get(len(self.names))
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action:
            self.busy = True
            files.write(DIRECTORY, "stop", action + LONG, Trailers(signal_id=action))
            os.write(PIPE[1], action.encode() + b"\n")
            self.busy = False


def seen():
    """What a reader finds: None, or which signal; anything that is not whole is named as such."""
    found = files.read(DIRECTORY, "stop")
    if found is None:
        return None
    whole = found.reason == f"{found.trailers.signal_id}{LONG}"
    return found.trailers.signal_id if whole else f"partial: {found.reason[:40]!r} {found.trailers!r}"


def case(work, before, actions, hard_links):
    global PIPE
    for name in os.listdir(DIRECTORY):
        os.unlink(os.path.join(DIRECTORY, name))
    if before:
        files.write(DIRECTORY, "stop", before + LONG, Trailers(signal_id=before))
    standing = files.read(DIRECTORY, "stop")
    PIPE = os.pipe()
    child = os.fork()
    if child == 0:
        hook = Hook({int(number): action for number, action in actions.items()}, hard_links)
        result = None
        hook.install()
        if work == "write":
            files.write(DIRECTORY, "stop", "new" + LONG, Trailers(signal_id="new"))
        else:
            result = files.clear(standing)
        hook.point("end")
        hook.busy = True
        os.write(PIPE[1], json.dumps({"calls": hook.names, "result": result}).encode() + b"\n")
        os._exit(0)
    os.close(PIPE[1])
    _, status = os.waitpid(child, 0)
    with open(PIPE[0], encoding="utf-8") as told:
        lines = told.read().splitlines()
    told = json.loads(lines.pop()) if status == 0 else {}
    at_once = seen()
    files.recover(DIRECTORY)
    outcome = {"killed": status == signal.SIGKILL, "written": lines, "at_once": at_once, "recovered": seen(), **told}
    outcome["left"] = sorted(name for name in os.listdir(DIRECTORY) if name != ".stop")
    return outcome


DIRECTORY = sys.argv[1]
for line in sys.stdin:
    print(json.dumps(case(**json.loads(line))), flush=True)
'''


class Driver:
    """The process that plays one case after the other."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def play(
        self, work: str, before: str | None, actions: dict[int, str] | None = None, *, hard_links: bool = True
    ) -> dict[str, Any]:
        """Do the work with these things happening before the calls of these numbers; the last one is the end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        case = {"work": work, "before": before, "actions": actions or {}, "hard_links": hard_links}
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        outcome: dict[str, Any] = json.loads(self._process.stdout.readline())
        return outcome

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture
def driver(tmp_path: Path) -> Any:
    driver = Driver(tmp_path)
    yield driver
    driver.close()


@pytest.mark.parametrize("before", [None, "old"])
def test_a_writer_killed_at_any_call_leaves_the_former_signal_or_the_new_one_whole(
    driver: Driver, before: str | None
) -> None:
    calls = driver.play("write", before)["calls"]
    assert {"open", "write", "fsync", "rename", "close", "end"} <= set(calls)
    renamed_at = calls.index("rename") + 1
    for number in range(1, len(calls) + 1):
        outcome = driver.play("write", before, {number: "kill"})
        where = f"killed before call {number} ({calls[number - 1]}): {outcome}"
        assert outcome["killed"], where
        assert outcome["at_once"] == ("new" if number > renamed_at else before), where
        assert outcome["recovered"] == outcome["at_once"], where


def test_a_writer_that_is_not_killed_leaves_its_signal_and_nothing_else(driver: Driver) -> None:
    outcome = driver.play("write", "old")
    assert (outcome["recovered"], outcome["left"]) == ("new", [])
    # The content is on disk before it gets its name, and its name is on disk before the writer returns.
    calls = outcome["calls"]
    assert calls.index("write") < calls.index("fsync") < calls.index("rename") < len(calls) - calls[::-1].index("fsync")
    assert calls.count("fsync") == 2


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_clear_killed_at_any_call_leaves_the_signal_or_has_removed_it(driver: Driver, hard_links: bool) -> None:
    whole = driver.play("clear", "old", hard_links=hard_links)
    assert (whole["result"], whole["recovered"], whole["left"]) == (True, None, [])
    calls = whole["calls"]
    removed_at = calls.index("unlink") + 1
    for number in range(1, len(calls) + 1):
        outcome = driver.play("clear", "old", {number: "kill"}, hard_links=hard_links)
        where = f"killed before call {number} ({calls[number - 1]}): {outcome}"
        assert outcome["killed"], where
        assert outcome["at_once"] in (None, "old"), where
        assert outcome["recovered"] == (None if number > removed_at else "old"), where
        assert outcome["left"] == [], where


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_newer_signal_survives_a_clear_at_whichever_call_it_comes_and_wherever_the_clear_is_killed(
    driver: Driver, hard_links: bool
) -> None:
    number, ended = 0, False
    while not ended:
        number += 1
        overtaken = driver.play("clear", "old", {number: "newer"}, hard_links=hard_links)
        assert overtaken["written"] == ["newer"], overtaken
        assert (overtaken["recovered"], overtaken["left"]) == ("newer", []), (number, overtaken)
        calls = overtaken["calls"]
        ended = calls[number - 1] == "end"
        for killed_at in range(number + 1, len(calls) + 1):
            outcome = driver.play("clear", "old", {number: "newer", killed_at: "kill"}, hard_links=hard_links)
            where = f"newer before call {number}, killed before call {killed_at} of {calls}: {outcome}"
            assert outcome["killed"], where
            assert (outcome["recovered"], outcome["left"]) == ("newer", []), where
    assert number > 10


@pytest.mark.parametrize("hard_links", [True, False])
def test_of_two_newer_signals_the_newest_survives_a_clear(driver: Driver, hard_links: bool) -> None:
    first = 0
    while True:
        first += 1
        calls = driver.play("clear", "old", {first: "newer"}, hard_links=hard_links)["calls"]
        if calls[first - 1] == "end":
            break
        for second in range(first + 1, len(calls) + 1):
            outcome = driver.play("clear", "old", {first: "newer", second: "newest"}, hard_links=hard_links)
            assert outcome["written"] == ["newer", "newest"], outcome
            assert (outcome["recovered"], outcome["left"]) == ("newest", []), (first, second, outcome)


def test_a_clear_of_what_is_no_longer_the_same_says_so_unless_it_was_faster(driver: Driver) -> None:
    calls = driver.play("clear", "old")["calls"]
    taken_at = calls.index("rename") + 1
    for number in range(1, len(calls) + 1):
        outcome = driver.play("clear", "old", {number: "newer"})
        assert outcome["result"] is (number > taken_at), (number, outcome)


def test_what_a_killed_writer_leaves_behind_does_not_signal_and_does_not_disturb_the_next(driver: Driver) -> None:
    calls = driver.play("write", None)["calls"]
    outcome = driver.play("write", None, {calls.index("rename") + 1: "kill"})
    assert outcome["recovered"] is None
    assert [name.endswith(".tmp") for name in outcome["left"]] == [True]
    assert driver.play("write", None)["recovered"] == "new"
