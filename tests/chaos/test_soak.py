"""The soak: a short storm breaks no promise, and the auditor tells of every promise that is broken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import journal

SCRIPTS = Path(__file__).parents[2] / "scripts"
SECONDS, SEED = 25, 8
DEADLINE_S = 400

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the storm needs /proc")


def soak(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    command = [sys.executable, "-m", "soaking", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a storm left, and its report beside it."""
    kept = tmp_path_factory.mktemp("soak") / "kept"
    done = soak("--seconds", SECONDS, "--seed", SEED, "--keep", kept, "--json", f"{kept}.json")
    assert done.returncode == 0, done.stdout + done.stderr
    return kept


class Copy:
    """A copy of what a storm left, to break a promise in."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "project"
        self.own = self.root / ".swissarmyhammer"
        self.storm: dict[str, Any] = json.loads((place / "storm.json").read_text())

    def effects(self, change: Callable[[list[str]], list[str]]) -> None:
        path = self.place / "effects"
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")

    def applied(self) -> dict[str, Any]:
        """A signal that was applied to a run."""
        ids = journal.applied_signals(self.root)
        found: dict[str, Any] = next(s for s in self.storm["signals"] if ids & set(s["ids"]) and not s["gone_by"])
        return found

    def audit(self, *, holds: bool = False) -> str:
        (self.place / "storm.json").write_text(json.dumps(self.storm))
        done = soak("--audit", self.place)
        assert done.returncode == (0 if holds else 1), done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def copy(left: Path, tmp_path: Path) -> Copy:
    return Copy(shutil.copytree(left, tmp_path / "copy"))


def test_a_storm_of_signals_kills_full_disks_and_clock_steps_breaks_no_promise(left: Path) -> None:
    report = json.loads(Path(f"{left}.json").read_text())
    assert report["broken"] == {}
    assert (report["survivors"], report["lost"], report["repeated"]) == (0, 0, 0)
    # It was a storm, not a breeze.
    assert report["signals"] >= 10
    assert report["kills"] >= 2
    assert {"applied", "cancelled"} <= set(report["outcomes"])
    assert len(report["daemon"]) > 1
    left_out = {note.partition(":")[0] for note in report["notes"]}
    assert "clock steps" in left_out or report["clock_steps"] >= 2


def test_a_signal_without_an_outcome_is_told(copy: Copy) -> None:
    signal = copy.applied()
    journal.forget_signals(copy.root, signal["ids"])
    for signal_id in signal["ids"]:
        copy.storm["receipts"].pop(signal_id, None)
    signal["missed_at"] = 0.0  # it was gone before any run had ended
    assert "BROKEN one outcome a signal: 1 times\n    lost: " in copy.audit()


def test_a_signal_that_is_left_lying_is_told(copy: Copy) -> None:
    place = copy.own / "workspaces" / "w0"
    (place / ".stop").touch()
    copy.storm["signals"].append(
        {**copy.storm["signals"][0], "path": f"{copy.storm['root']}/.swissarmyhammer/workspaces/w0/.stop"}
        | {"ids": ["nobody knows"], "gone_by": None, "gone_at": None, "missed_at": None, "governs": "workspace"}
    )
    assert "    left: " in copy.audit()


def test_a_stop_that_is_applied_after_it_was_taken_back_is_told(copy: Copy) -> None:
    signal = copy.applied()
    signal |= {"kind": "stop", "gone_by": "deleted", "gone_at": 1.0}
    assert "taken back, and applied to" in copy.audit()


def test_a_run_that_goes_on_under_a_signal_is_told(copy: Copy) -> None:
    run_id, start, seq = journal.last_step_of_any_run(copy.root)
    # What was seen of the run before that step was seen long before.
    _, after, by = next(look for look in copy.storm["witnessed"][run_id] if look[0] >= seq)
    copy.storm["witnessed"][run_id] = [[seq - 1, after - 1000, by - 1000], [1 << 30, after, by]]
    copy.storm["signals"].append({**copy.applied(), "kind": "abort", "governs": "project", "stood_at": after - 500})
    told = copy.audit()
    assert "BROKEN signals are obeyed" in told
    assert f"\n    {run_id} start {start}: " in told


def test_the_times_in_the_journal_are_not_believed(copy: Copy) -> None:
    journal.shift_times(copy.root, -86400, every=3)
    journal.shift_times(copy.root, 3600, every=5)
    assert "every promise held" in copy.audit(holds=True)


def test_a_start_without_an_end_is_told(copy: Copy) -> None:
    journal.forget_the_end(copy.root)
    assert "BROKEN one end a start" in copy.audit()


def test_a_run_that_never_completes_is_told(copy: Copy) -> None:
    journal.set_status(copy.root, "interrupted")
    assert "BROKEN runs complete: 1 times" in copy.audit()


def test_a_step_that_was_completed_but_never_done_is_told(copy: Copy) -> None:
    def forget(lines: list[str]) -> list[str]:
        step = next(line for line in lines if line.startswith("done")).split()[1:3]
        return [line for line in lines if not (line.startswith("done") and line.split()[1:3] == step)]

    copy.effects(forget)
    assert "BROKEN no step lost: 1 times" in copy.audit()


def test_a_completed_step_that_is_begun_again_is_told(copy: Copy) -> None:
    def again(lines: list[str]) -> list[str]:
        _, run_id, step, _ = next(line for line in lines if line.startswith("done")).split()
        return [*lines, *[f"begin {run_id} {step} {pid}" for pid in range(10)]]

    copy.effects(again)
    assert "BROKEN no step repeated: 1 times" in copy.audit()


def test_a_process_that_is_left_is_told(copy: Copy) -> None:
    environment = {**os.environ, "SOAK_MARK": copy.storm["mark"]}
    with subprocess.Popen(["sleep", "600"], env=environment) as survivor:
        try:
            told = copy.audit()
        finally:
            survivor.kill()
    assert f"BROKEN no process left: 1 times\n    {survivor.pid} sleep 600" in told


@pytest.mark.parametrize("name", ["workspaces/w0/.stop.0123.tmp", ".abort.taken", "open/01M7HHSBJX7P3ZD4CAJ7W1XD5X"])
def test_a_stale_file_is_told(copy: Copy, name: str) -> None:
    (copy.own / name).touch()
    assert f"BROKEN no stale file: 1 times\n    {copy.own / name}" in copy.audit()


def test_a_daemon_that_grows_or_dies_is_told(copy: Copy) -> None:
    copy.storm["figures"][-1]["descriptors"] += 1
    copy.storm["figures"][-1]["rss_mb"] += 50
    copy.storm["deaths"] = ["exit 1: a bug"]
    told = copy.audit()
    assert "BROKEN the daemon is flat: 2 times" in told
    assert "BROKEN the daemon lives: 1 times\n    exit 1: a bug" in told
