"""Receipts: several owners add to one, a later signal starts a new one, and nothing odd is believed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.signals import files, receipts
from sidecar.signals.files import new_trailers
from sidecar.signals.receipts import ReceiptProcess, RunOutcome

WHOLE: dict[str, object] = {
    **dict.fromkeys(("signal", "signal_id", "path", "state", "reason"), "x"),
    **dict.fromkeys(("requested_by", "received_at", "applied_at")),
    "runs": [],
    "processes": [],
    "survivors": 0,
    "removed": True,
}


def signal_in(directory: Path, reason: str = "why") -> files.Signal:
    files.write(str(directory), "abort", reason, new_trailers())
    signal = files.read(str(directory), "abort")
    assert signal is not None
    return signal


def ended(run_id: str, pid: int) -> ReceiptProcess:
    return {
        "run_id": run_id,
        "pid": pid,
        "started_at": "2026-11-15T10:00:00Z",
        "program": "sleep",
        "rung": "term",
        "ms_to_death": 3.5,
    }


def outcome(run_id: str, status: str = "aborted") -> RunOutcome:
    return {"run_id": run_id, "status": status}


def test_a_receipt_has_the_shape_of_the_contract(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    receipts.add(
        signal,
        "applied",
        received_at="2026-11-15T10:00:00Z",
        applied_at="2026-11-15T10:00:01Z",
        runs=[outcome("A")],
        processes=[ended("A", 7)],
        removed=True,
    )
    with open(signal.path + ".receipt.json", encoding="utf-8") as file:
        written = json.load(file)
    assert written == {
        "signal": "abort",
        "signal_id": signal.signal_id,
        "path": signal.path,
        "state": "applied",
        "reason": "why",
        "requested_by": signal.trailers.requested_by,
        "received_at": "2026-11-15T10:00:00Z",
        "applied_at": "2026-11-15T10:00:01Z",
        "runs": [{"run_id": "A", "status": "aborted"}],
        "processes": [ended("A", 7)],
        "survivors": 0,
        "removed": True,
    }
    assert receipts.read(signal.path) == written


def test_several_owners_add_to_one_receipt(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    receipts.add(signal, "received", received_at="1")
    receipts.add(signal, "applied", applied_at="2", runs=[outcome("A")], processes=[ended("A", 7)], survivors=1)
    receipt = receipts.add(
        signal, "applied", applied_at="3", runs=[outcome("B")], processes=[ended("B", 7)], removed=True
    )
    assert [run["run_id"] for run in receipt["runs"]] == ["A", "B"]
    assert [process["run_id"] for process in receipt["processes"]] == ["A", "B"]
    assert (receipt["received_at"], receipt["applied_at"]) == ("1", "3")
    assert (receipt["survivors"], receipt["removed"], receipt["state"]) == (1, True, "applied")


def test_an_owner_that_says_the_same_again_after_a_crash_is_counted_once(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    for _ in range(2):
        receipt = receipts.add(signal, "applied", runs=[outcome("A")], processes=[ended("A", 7)], survivors=1)
    assert (len(receipt["runs"]), len(receipt["processes"]), receipt["survivors"]) == (1, 1, 1)


def test_the_survivors_of_one_owner_are_never_forgotten_for_what_another_says(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    receipts.add(signal, "applied", runs=[outcome("A")], survivors=2)
    assert receipts.add(signal, "refused")["survivors"] == 2
    assert receipts.add(signal, "applied", runs=[outcome("B")], survivors=1)["survivors"] == 3
    assert receipts.add(signal, "applied", runs=[outcome("B")], survivors=0)["survivors"] == 3


def test_the_receipt_of_an_earlier_signal_is_replaced(tmp_path: Path) -> None:
    receipts.add(signal_in(tmp_path, "first"), "applied", runs=[outcome("A")], survivors=3)
    later = signal_in(tmp_path, "second")
    receipt = receipts.add(later, "applied", runs=[outcome("B")])
    assert (receipt["signal_id"], receipt["reason"], receipt["survivors"]) == (later.signal_id, "second", 0)
    assert receipt["runs"] == [outcome("B")]


def test_owners_that_add_at_the_same_time_are_all_in_it(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    names = [f"run-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: receipts.add(signal, "applied", runs=[outcome(name)]), names))
    receipt = receipts.read(signal.path)
    assert receipt is not None
    assert sorted(run["run_id"] for run in receipt["runs"]) == sorted(names)
    assert sorted(os.listdir(tmp_path)) == [".abort", ".abort.receipt.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"signal_id": "1"}',
        b"\xff\xfe",
        b"[" * 200_000,
        json.dumps({**WHOLE, "runs": [{}]}).encode(),
        json.dumps({**WHOLE, "processes": [7]}).encode(),
        json.dumps({**WHOLE, "survivors": "none"}).encode(),
        json.dumps({**WHOLE, "runs": {}}).encode(),
    ],
)
def test_what_is_not_a_receipt_is_none_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    signal = signal_in(tmp_path)
    (tmp_path / ".abort.receipt.json").write_bytes(content)
    assert receipts.read(signal.path) is None
    receipts.add(signal, "applied", runs=[outcome("A")])
    receipt = receipts.read(signal.path)
    assert receipt is not None
    assert receipt["runs"] == [outcome("A")]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_an_odd_thing_in_the_receipts_place_never_blocks(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / ".abort.receipt.json")
    code = "import sys; from sidecar.signals import receipts; print(receipts.read(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / ".abort")]  # a process of its own can be ended if it blocks
    assert subprocess.run(command, capture_output=True, timeout=30, check=True).stdout == b"None\n"


def test_a_link_to_somebody_elses_receipt_is_not_followed(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    receipts.add(signal, "applied")
    os.rename(tmp_path / ".abort.receipt.json", tmp_path / "elsewhere.json")
    os.symlink("elsewhere.json", tmp_path / ".abort.receipt.json")
    assert receipts.read(signal.path) is None


def test_applied_to_anybody_is_applied_however_many_others_refused(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    receipts.add(signal, "applied", runs=[outcome("A")])
    assert receipts.add(signal, "refused", runs=[outcome("B", "running")])["state"] == "applied"


def test_an_owner_alone_can_correct_its_survivors(tmp_path: Path) -> None:
    signal = signal_in(tmp_path)
    receipts.add(signal, "applied", runs=[outcome("A")], survivors=2)
    assert receipts.add(signal, "applied", runs=[outcome("A")], survivors=0)["survivors"] == 0
