"""An owner killed by -9 at any write of its journal: what was done is not done again, and nothing else is lost."""

from __future__ import annotations

import os
import queue
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.kit import journal

Starter = Callable[..., dict[str, Any]]
Starters = queue.SimpleQueue[Starter]
WORKFLOWS = [Path(__file__).parent / "programs" / "thirty" / f"{name}.yaml" for name in ("thirty", "part")]
SAMPLE = 24
MOMENTS = 4
STARTS = 60
KILLED = -signal.SIGKILL
# Tasks beside each other end in any order; everything else has one.
UNORDERED = ("fanned", "later", "steps_completed", "steps_failed")


@dataclass
class Seen:
    """A run from outside: what its steps did in the world, and what the journal says of them."""

    run_id: str | None = None
    began: Counter[str] = field(default_factory=Counter)  # executions, by key
    ended: Counter[str] = field(default_factory=Counter)
    attempts: dict[str, list[str]] = field(default_factory=dict)  # how each attempt at a step stands, by key

    def settled(self, key: str) -> list[str]:
        """How the attempts ended that came to an end before their owner did."""
        return [status for status in self.attempts.get(key, ()) if status in ("completed", "failed")]

    def in_flight(self, key: str) -> bool:
        return self.attempts.get(key, [""])[-1] == "begun"


class Trial:
    """One run in a project of its own."""

    def __init__(self, root: Path, starter: Starter) -> None:
        self.root = root
        self.database = root / ".swissarmyhammer" / "sidecar.db"
        self.effects = root / "effects"
        self.effects.touch()
        self._starter = starter

    def start(self, run_id: str | None = None, **request: Any) -> dict[str, Any]:
        """Start it, or resume it; what its process told. Nothing of it lives when this returns."""
        run_id = run_id or self.look().run_id
        return self._starter(self.root, run_id, "thirty", environment={"EFFECTS": str(self.effects)}, **request)

    def look(self) -> Seen:
        """As it stands now."""
        seen = Seen()
        journal.assert_sound(self.root)
        for run in journal.runs(self.root):
            seen.run_id = run.run_id
            seen.attempts = journal.attempts(self.root, run.run_id)
        for line in self.effects.read_text(encoding="utf-8").splitlines():
            word, key = line.split()
            (seen.began if word == "begin" else seen.ended)[key] += 1
        return seen

    def copied(self, root: Path) -> Trial:
        """The same, beside it."""
        shutil.copytree(self.root, root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        return Trial(root, self._starter)

    def assert_in_order(self) -> None:
        """What the journal owes to whoever reads it: one end for each start, one completion for each step."""
        (run,) = journal.runs(self.root)
        events = journal.events(self.root, run.run_id)
        assert run.status == "completed"
        starts = [event.kind for event in events if event.kind in ("run_started", "run_resumed", "run_ended")]
        assert starts[::2] == ["run_started", *["run_resumed"] * (len(starts) // 2 - 1)]
        assert starts[1::2] == ["run_ended"] * (len(starts) // 2)
        completed = Counter(event.data["step"] for event in events if event.kind == "step_completed")
        assert set(completed.values()) == {1}
        assert journal.agents_not_ended(self.root) == []


def ordered(state: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(value) if name in UNORDERED else value for name, value in state.items()}


class Expected:
    """What the undisturbed run did: the measure of all others."""

    def __init__(self, trial: Trial) -> None:
        answer = trial.start()
        assert (answer.get("status"), answer.get("error")) == ("completed", None)
        trial.assert_in_order()
        self.writes: int = answer["writes"]
        self.duration_s: float = answer["s"]
        self.state = ordered(answer["state"])
        self.seen = trial.look()
        assert len(self.seen.began) > 30
        assert self.seen.began.keys() <= self.seen.attempts.keys()  # they call themselves what the journal calls them
        assert self.seen.began == self.seen.ended
        assert "interrupted" not in [status for each in self.seen.attempts.values() for status in each]

    def assert_in_step(self, seen: Seen) -> None:
        """At any moment: nothing was done before it was journalled as begun, nothing is over before it was done."""
        for key in self.seen.began:
            assert seen.began[key] <= len(seen.attempts.get(key, ())), f"{key} was not journalled when it was executed"
            assert len(seen.settled(key)) <= seen.ended[key], f"{key} was journalled as over before it was"

    def assert_reached(self, trial: Trial, answer: dict[str, Any], crashes: list[Seen]) -> None:
        """The run came to the same end, and on its way did everything once, besides what was in flight at a crash."""
        assert (answer.get("status"), answer.get("error")) == ("completed", None)
        assert ordered(answer["state"]) == self.state
        seen = trial.look()
        assert {key: seen.settled(key) for key in seen.attempts} == self.seen.attempts
        for key, attempts in seen.attempts.items():
            interrupted = [crash for crash in crashes if crash.in_flight(key)]
            assert attempts.count("interrupted") == len(interrupted), f"{key}: {attempts}"
        last = crashes[-1] if crashes else Seen()
        for key, count in self.seen.began.items():
            since = seen.began[key] - last.began[key]
            assert since == count - len(last.settled(key)), f"{key} was executed {since} times since the last crash"
        trial.assert_in_order()


@pytest.fixture(scope="module")
def starters(starter: Callable[..., Starter]) -> Starters:
    """Two of them, since runs wait more than they work."""
    free: Starters = queue.SimpleQueue()
    free.put(starter())
    free.put(starter())
    return free


@pytest.fixture(scope="module")
def expected(place: Path, project: Callable[..., Path], starters: Starters) -> Expected:
    starter = starters.get()
    try:
        return Expected(Trial(project(place, *WORKFLOWS), starter))
    finally:
        starters.put(starter)


class Laboratory:
    """Trials, two beside each other."""

    def __init__(self, make_project: Callable[[], Path], starters: Starters, expected: Expected) -> None:
        self.make_project = make_project
        self.expected = expected
        self._starters = starters

    def assert_holds(self, attempt: Callable[[Trial, Any], None], cases: Iterable[Any]) -> None:
        """For every case; all that were wrong are told at once."""

        def tried(case: Any) -> str:
            starter = self._starters.get()
            trial = Trial(self.make_project(), starter)
            try:
                attempt(trial, case)
            except AssertionError as error:
                return f"{case}: {error}"
            finally:
                self._starters.put(starter)
                shutil.rmtree(trial.root)
            return ""

        with ThreadPoolExecutor(2) as beside_each_other:
            wrong = list(filter(None, beside_each_other.map(tried, cases)))
        assert not wrong, "\n\n".join(wrong)

    def crash(self, trial: Trial, **death: Any) -> Seen | None:
        """Start it and have its owner killed; None: it was faster."""
        answer = trial.start(**death)
        if answer["code"] != KILLED:
            self.expected.assert_reached(trial, answer, [])
            return None
        seen = trial.look()
        self.expected.assert_in_step(seen)
        return seen

    def killed_once(self, trial: Trial, death: dict[str, Any]) -> None:
        """Its owner is killed, then it is resumed."""
        seen = self.crash(trial, **death)
        if seen is not None:
            self.expected.assert_reached(trial, trial.start(), [seen])

    def killed_always(self, trial: Trial, writes: int) -> None:
        """Every owner is killed at the same write of its own, until one has not so many left."""
        crashes: list[Seen] = []
        for number in range(STARTS):
            answer = trial.start(die=["before" if number % 2 else "after", writes, {}])
            if answer["code"] != KILLED:
                assert len(crashes) > 3
                self.expected.assert_reached(trial, answer, crashes)
                return
            crashes.append(trial.look())
            self.expected.assert_in_step(crashes[-1])
        raise AssertionError(f"it does not get to its end in {STARTS} starts")


@pytest.fixture
def laboratory(place: Path, project: Callable[..., Path], starters: Starters, expected: Expected) -> Laboratory:
    return Laboratory(lambda: project(place, *WORKFLOWS), starters, expected)


def test_an_owner_killed_at_any_write_loses_nothing_and_repeats_only_what_was_in_flight(
    laboratory: Laboratory, pytestconfig: pytest.Config
) -> None:
    writes = range(1, laboratory.expected.writes + 1)
    points: list[dict[str, Any]] = [{"die": [when, number, {}]} for number in writes for when in ("before", "after")]
    if not pytestconfig.getoption("--long"):
        points = [points[(2 * n + 1) * len(points) // (2 * SAMPLE)] for n in range(SAMPLE)]
    laboratory.assert_holds(laboratory.killed_once, points)


def test_an_owner_killed_where_one_thing_is_journalled_and_what_follows_from_it_is_not(laboratory: Laboratory) -> None:
    def killed(trial: Trial, death: list[Any]) -> None:
        seen = laboratory.crash(trial, die=death)
        assert seen is not None, "nothing of the kind is ever written"
        laboratory.expected.assert_reached(trial, trial.start(), [seen])

    laboratory.assert_holds(
        killed,
        [
            # It failed; that the run goes on without it is not known yet.
            ["after", 1, {"kind": "step_failed", "step": "soft"}],
            # The last step of a task, which is over with it.
            ["after", 1, {"kind": "step_completed", "step": "fan.0/two"}],
            ["before", 1, {"kind": "task_ended", "task": "fan.0"}],
            ["after", 1, {"kind": "task_ended", "task": "fan.0"}],
            # A task has failed, and is to be tried again.
            ["after", 1, {"kind": "step_failed", "step": "again.1#1/might"}],
            ["before", 1, {"kind": "task_ended", "task": "again.1"}],
            ["after", 1, {"kind": "task_ended", "task": "again.1"}],
            ["before", 1, {"kind": "run_ended"}],
            ["after", 1, {"kind": "run_ended"}],
        ],
    )


def test_an_owner_killed_at_any_moment_takes_its_agents_along_and_is_resumed(
    laboratory: Laboratory, pytestconfig: pytest.Config
) -> None:
    chance = random.Random(20261116)
    rounds = 100 if pytestconfig.getoption("--long") else MOMENTS
    moments = [{"die_after_s": chance.uniform(0.05, laboratory.expected.duration_s)} for _ in range(rounds)]
    laboratory.assert_holds(laboratory.killed_once, moments)


def test_a_run_whose_every_owner_is_killed_gets_to_its_end_all_the_same(
    laboratory: Laboratory, pytestconfig: pytest.Config
) -> None:
    writes = [29, 31, 37, 43] if pytestconfig.getoption("--long") else [43]
    laboratory.assert_holds(laboratory.killed_always, writes)


def test_a_log_that_was_torn_with_its_owner_loses_its_last_writes_and_no_more(laboratory: Laboratory) -> None:
    def torn(trial: Trial, damage: Callable[[Path], None]) -> None:
        assert trial.start(die=["after", laboratory.expected.writes * 2 // 3, {}])["code"] == KILLED
        damage(trial.database.with_name("sidecar.db-wal"))
        # What is left of it is read from a copy: whoever opens and closes the log brings it into the database.
        seen = trial.copied(laboratory.make_project()).look()
        laboratory.expected.assert_reached(trial, trial.start(seen.run_id), [seen])

    def cut(size: int) -> Callable[[Path], None]:
        return lambda log: os.truncate(log, log.stat().st_size - size)

    def overwritten(log: Path) -> None:
        content = log.read_bytes()
        log.write_bytes(content[:-3_000] + random.Random(5).randbytes(3_000))

    laboratory.assert_holds(torn, [cut(100), cut(9_000), overwritten])


def test_a_damaged_page_is_refused_or_harmless_and_never_makes_a_run_go_wrong(laboratory: Laboratory) -> None:
    refused = []

    def damaged(trial: Trial, damage: Callable[[Path], None]) -> None:
        assert trial.start(die=["after", laboratory.expected.writes * 2 // 3, {}])["code"] == KILLED
        seen = trial.look()
        journal.merge_log(trial.root)
        damage(trial.root)
        before = trial.effects.read_text(encoding="utf-8")
        answer = trial.start(seen.run_id)
        if "error" not in answer:
            laboratory.expected.assert_reached(trial, answer, [seen])
            return
        refused.append(answer)
        assert "damaged" in answer["error"]
        assert "\n" not in answer["error"]
        assert str(trial.database) in answer["error"]
        assert trial.effects.read_text(encoding="utf-8") == before

    def last_page(instead: bytes) -> Callable[[Path], None]:
        def replace(root: Path) -> None:
            path = journal.path(root)
            path.write_bytes(path.read_bytes()[:-4096] + instead)

        return replace

    def other_values(root: Path) -> None:
        journal.replace_in_checkpoints(root, "was done", "was dine")  # every page is sound

    garbage, zeros, cut = random.Random(5).randbytes(4096), bytes(4096), b""
    laboratory.assert_holds(damaged, [*map(last_page, (garbage, zeros, cut)), other_values])
    assert len(refused) == 4
