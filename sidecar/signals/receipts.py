"""Receipts: what became of the last signal in a place, told in a JSON file beside it."""

from __future__ import annotations

import json
import os
from typing import Literal, TypedDict

from sidecar.signals.files import Locked, Signal, replace

SUFFIX = ".receipt.json"
State = Literal["received", "applied", "cancelled", "expired", "refused"]
Rung = Literal["exited", "stdin", "term", "kill"]


class RunOutcome(TypedDict):
    """How one governed run took the signal."""

    run_id: str
    status: str


class EndedProcess(TypedDict):
    """One process that was ended for it, and which rung of the ladder it took."""

    run_id: str
    pid: int
    started_at: str
    command: str
    rung: Rung
    ms_to_death: float


class Receipt(TypedDict):
    """The whole of a receipt file."""

    signal: str
    signal_id: str
    path: str
    state: State
    reason: str
    requested_by: str | None
    received_at: str | None
    applied_at: str | None
    runs: list[RunOutcome]
    processes: list[EndedProcess]
    survivors: int
    removed: bool


def read(signal_path: str) -> Receipt | None:
    """The receipt beside a signal's path, or None where there is none that can be understood."""
    try:
        with open(signal_path + SUFFIX, encoding="utf-8") as file:
            receipt = json.load(file)
    except (OSError, ValueError):
        return None
    return receipt if isinstance(receipt, dict) and "signal_id" in receipt else None  # type: ignore[return-value]


def add(
    signal: Signal,
    state: State,
    *,
    received_at: str | None = None,
    applied_at: str | None = None,
    runs: list[RunOutcome] | None = None,
    processes: list[EndedProcess] | None = None,
    survivors: int = 0,
    removed: bool = False,
) -> Receipt:
    """Add one owner's part to the receipt of this signal; a receipt of an earlier signal is replaced."""
    receipt: Receipt = {
        "signal": signal.kind,
        "signal_id": signal.signal_id,
        "path": signal.path,
        "state": state,
        "reason": signal.reason,
        "requested_by": signal.trailers.requested_by,
        "received_at": received_at,
        "applied_at": applied_at,
        "runs": runs or [],
        "processes": processes or [],
        "survivors": survivors,
        "removed": removed,
    }
    directory, name = os.path.split(signal.path)
    with Locked(directory):
        earlier = read(signal.path)
        if earlier is not None and earlier["signal_id"] == receipt["signal_id"]:
            receipt = _merged(earlier, receipt)
        replace(directory, name + SUFFIX, json.dumps(receipt, indent=1).encode() + b"\n")
    return receipt


def _merged(earlier: Receipt, later: Receipt) -> Receipt:
    """Both owners' parts. Applied to anybody is applied, however many others refused it."""
    known = {outcome["run_id"]: outcome for outcome in [*earlier["runs"], *later["runs"]]}
    is_repeat = len(known) == len(earlier["runs"])  # the same owner again, after a crash or with more to say
    processes = {(p["run_id"], p["pid"], p["started_at"]): p for p in [*earlier["processes"], *later["processes"]]}
    return {
        **later,
        "state": "applied" if "applied" in (earlier["state"], later["state"]) else later["state"],
        "received_at": earlier["received_at"] or later["received_at"],
        "applied_at": later["applied_at"] or earlier["applied_at"],
        "runs": list(known.values()),
        "processes": list(processes.values()),
        "survivors": later["survivors"] + (0 if is_repeat else earlier["survivors"]),
        "removed": earlier["removed"] or later["removed"],
    }
