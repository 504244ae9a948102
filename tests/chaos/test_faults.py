"""A journal that cannot be kept: one clear line, every agent ended, and a run that goes on when the fault is gone."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit import DEADLINE_S, journal, until
from tests.kit.journal import locked

Starter = Any
FAULTS = Path(__file__).parent / "programs" / "faults"
LOG = ["first was done", "last was done"]
TASKS = ["breaks was done", "waits was done"]
# The words that tell the user what is wrong with the journal.
WHY = {
    "full": "no space left on the disk",
    "forbidden": "check the directory's owner",
    "removed": "was removed or replaced while in use",
}
# A directory that becomes a small disk of its own, seen only by the program that is started in there.
SMALL_DISK = 'mount -t tmpfs -o size=2m none "$1"; cp -R "$2/." "$1"; shift 2; exec "$@"'


class Trial:
    """A run in which one task breaks something while another one waits, for ever if nobody ends it."""

    def __init__(self, root: Path, outside: Path, starter: Starter, run_id: str | None = None) -> None:
        self.root = root
        self.run_id = run_id
        self.effects = outside / "effects"
        self.free = outside / "free"
        self.ready = outside / "ready"
        self.go = outside / "go"
        self.starter = starter

    def start(self, fault: str = "true", **request: Any) -> dict[str, Any]:
        """What the process told when it was gone, and everything that it had started."""
        environment = {
            "EFFECTS": str(self.effects),
            "FREE": str(self.free),
            "READY": str(self.ready),
            "GO": str(self.go),
            "FAULT": fault,
            "FAULTY": str(FAULTS / "faulty.sh"),
        }
        answer: dict[str, Any] = self.starter(self.root, self.run_id, "fault", environment=environment, **request)
        (self.run_id,) = answer["runs"]
        return answer

    def did(self) -> Counter[str]:
        """What the steps did in the world."""
        return Counter(self.effects.read_text(encoding="utf-8").splitlines())

    def assert_refused(self, answer: dict[str, Any], kind: str) -> None:
        """The owner has ended everything and itself, and said why."""
        assert (answer["code"], answer.get("status")) == (2, None), answer
        assert "\n" not in answer["error"]
        assert WHY[kind] in answer["error"]
        assert str(self.root) in answer["error"]
        assert self.did()["done waits"] == 0

    def assert_completes(self) -> None:
        """Nobody breaks anything any more: the run goes on, with what was in flight done again and nothing else."""
        self.free.touch()
        answer = self.start()
        assert (answer.get("status"), answer.get("error")) == ("completed", None)
        state = answer["state"]
        assert (state["log"], sorted(state["tasks"])) == (LOG, TASKS)
        did = self.did()
        assert (did["begin first"], did["begin waits"], did["done waits"], did["begin last"]) == (1, 2, 1, 1)


@pytest.fixture(scope="module")
def ordinary(starter: Callable[..., Starter]) -> Starter:
    return starter()


@pytest.fixture
def trial(place: Path, project: Callable[..., Path], ordinary: Starter, tmp_path: Path) -> Trial:
    return Trial(project(place, FAULTS / "fault.yaml"), tmp_path, ordinary)


@pytest.fixture
def on_a_small_disk(
    place: Path, project: Callable[..., Path], starter: Callable[..., Starter], tmp_path: Path
) -> Trial:
    """In a file system of two megabytes."""
    probe = ["unshare", "-rm", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no user and mount namespaces on this machine")
    root = project(place, FAULTS / "fault.yaml")
    content = shutil.copytree(root, tmp_path / "content")
    return Trial(root, tmp_path, starter("unshare", "-rm", "sh", "-euc", SMALL_DISK, "sh", str(root), str(content)))


def test_a_disk_that_becomes_full_ends_the_run_which_goes_on_when_there_is_room(on_a_small_disk: Trial) -> None:
    trial = on_a_small_disk
    fill = f"dd if=/dev/zero of='{trial.root}/ballast' oflag=append conv=notrunc bs=1k 2>/dev/null || true"
    trial.assert_refused(trial.start(fill), "full")
    trial.starter.shell(fill)  # the owner's end has made a little room
    assert WHY["full"] in trial.start()["error"]  # nothing can be begun
    trial.starter.shell(f"rm '{trial.root}/ballast'")
    trial.assert_completes()


def test_a_run_in_a_directory_that_is_read_only_is_refused_until_it_is_not(on_a_small_disk: Trial) -> None:
    trial = on_a_small_disk
    answer = trial.start(f"dd if=/dev/zero of='{trial.root}/ballast' bs=4k 2>/dev/null || true")
    trial.assert_refused(answer, "full")
    trial.starter.shell(f"rm '{trial.root}/ballast'; mount -o remount,bind,ro '{trial.root}'")
    before = trial.did()
    trial.assert_refused(trial.start(), "forbidden")
    assert trial.did() == before
    trial.starter.shell(f"mount -o remount,bind,rw '{trial.root}'")
    trial.assert_completes()


def test_a_database_that_is_removed_under_a_run_ends_it_and_is_missed_afterwards(trial: Trial) -> None:
    answer = trial.start("rm .swissarmyhammer/sidecar.db*")
    trial.assert_refused(answer, "removed")
    before = trial.did()
    answer = trial.start()
    assert answer["code"] == 2
    assert answer["error"].startswith(f"no such run: {trial.run_id}")
    assert trial.did() == before


def test_a_database_that_is_replaced_under_a_run_ends_it_and_the_run_goes_on_from_the_other(trial: Trial) -> None:
    copies = " ".join(f"cp sidecar.db{end} copy{end}; mv copy{end} sidecar.db{end};" for end in ("-wal", ""))
    trial.assert_refused(trial.start(f"cd .swissarmyhammer; {copies}"), "removed")
    trial.assert_completes()


def test_an_owner_whose_agent_kills_it_takes_every_agent_along(trial: Trial) -> None:
    kill = "kill -9 $(head -n 1 .swissarmyhammer/runs/*/lock)"
    answer = trial.start(f'{kill}; until [ -e "$FREE" ]; do sleep 0.01; done')
    assert answer["code"] == -signal.SIGKILL
    assert trial.did() == Counter(["begin first", "done first", "begin breaks", "begin waits"])
    trial.assert_completes()


UNTIL_GO = 'touch "$READY"; until [ -e "$GO" ]; do sleep 0.01; done'


@pytest.mark.parametrize("seconds", [5, 12])  # the second: longer than a single transaction waits
def test_a_database_that_is_locked_for_long_is_waited_for(trial: Trial, seconds: int) -> None:
    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(trial.start, UNTIL_GO)
        until(trial.ready.exists)
        with locked(trial.root):
            trial.free.touch()
            trial.go.touch()
            time.sleep(seconds)  # what is tested: the time for which it stays locked
        answer = starting.result(DEADLINE_S)
    assert (answer.get("status"), answer.get("error")) == ("completed", None)
    assert sorted(answer["state"]["tasks"]) == TASKS
    assert set(trial.did().values()) == {1}


def test_a_file_in_the_place_of_the_logs_ends_the_run_which_goes_on_when_it_is_gone(trial: Trial) -> None:
    answer = trial.start('cd .swissarmyhammer/runs/*; mv agents kept; touch agents "$FREE"')
    assert answer["code"] == 2, answer
    assert answer["error"].startswith("cannot make ")
    trial.starter.shell(f"rm {trial.root}/.swissarmyhammer/runs/*/agents")
    answer = trial.start()
    assert (answer.get("status"), answer["state"]["log"]) == ("completed", LOG)
    assert set(trial.did().values()) == {1}


def test_a_clock_that_jumps_back_in_the_middle_of_a_run_changes_nothing(trial: Trial) -> None:
    trial.free.touch()
    answer = trial.start(clock_back_s=86_400, after_writes=15)
    assert (answer.get("status"), answer.get("error")) == ("completed", None)
    assert (answer["state"]["log"], sorted(answer["state"]["tasks"])) == (LOG, TASKS)
    assert set(trial.did().values()) == {1}
    times = [event.at for event in journal.events(trial.root, trial.run_id or "")]
    assert times != sorted(times)  # it did jump
    assert max(times) - min(times) > 80_000


def test_a_clock_that_is_behind_at_a_resume_changes_nothing(trial: Trial) -> None:
    assert trial.start(die=["after", 1, {"kind": "task_started"}])["code"] == -signal.SIGKILL
    trial.free.touch()
    answer = trial.start(clock_back_s=86_400, after_writes=0)
    assert (answer.get("status"), answer.get("error")) == ("completed", None)
    assert (answer["state"]["log"], sorted(answer["state"]["tasks"])) == (LOG, TASKS)
