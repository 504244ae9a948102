"""Receipts: what became of the last signal in a place, told in a JSON file beside it."""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, Literal, TypedDict, TypeGuard

from sidecar.errors import SignalError
from sidecar.signals.files import Locked, Signal, replace

SUFFIX = ".receipt.json"
_MAX_CHARACTERS = 16 * 1024 * 1024  # a thousand runs with a dozen processes each are a few megabytes
State = Literal["received", "applied", "cancelled", "expired", "refused"]
Rung = Literal["exited", "stdin", "term", "kill"]


class RunOutcome(TypedDict):
    """How one governed run took the signal."""

    run_id: str
    status: str


class ReceiptProcess(TypedDict):
    """One process that was ended for it, and which rung of the ladder it took."""

    run_id: str
    pid: int
    started_at: str
    program: str  # its name: arguments may hold a prompt, and a receipt can be read by others
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
    processes: list[ReceiptProcess]
    survivors: int
    removed: bool


def read(signal_path: str) -> Receipt | None:
    """The receipt beside a signal's path, or None where there is none that can be understood."""
    try:
        with open(signal_path + SUFFIX, encoding="utf-8", opener=_open_regular) as file:
            receipt = json.loads(file.read(_MAX_CHARACTERS))
    except (OSError, ValueError, RecursionError):
        return None
    return receipt if _is_receipt(receipt) else None


def _open_regular(path: str, flags: int) -> int:
    """Receipts stand where agents can write: no link is followed, and no FIFO's other end waited for."""
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    return file


def _is_receipt(content: object) -> TypeGuard[Receipt]:
    """Whether all is there that readers rely on."""
    if not _has_keys(content, Receipt.__required_keys__):
        return False
    kinds = (("signal_id", str), ("state", str), ("runs", list), ("processes", list), ("survivors", int))
    return (
        all(isinstance(content[name], kind) for name, kind in kinds)
        and all(_has_keys(run, RunOutcome.__required_keys__) for run in content["runs"])
        and all(_has_keys(process, ReceiptProcess.__required_keys__) for process in content["processes"])
    )


def _has_keys(content: object, names: frozenset[str]) -> TypeGuard[dict[str, Any]]:
    return isinstance(content, dict) and names <= content.keys()


def add(
    signal: Signal,
    state: State,
    *,
    received_at: str | None = None,
    applied_at: str | None = None,
    runs: list[RunOutcome] | None = None,
    processes: list[ReceiptProcess] | None = None,
    survivors: int = 0,
    removed: bool = False,
    reason: str | None = None,
) -> Receipt:
    """Add one owner's part to the receipt of this signal; a receipt of an earlier signal is replaced. `reason`: why it
    was refused, in place of the writer's own."""
    receipt: Receipt = {
        "signal": signal.kind,
        "signal_id": signal.signal_id,
        "path": signal.path,
        "state": state,
        "reason": reason or signal.reason,
        "requested_by": signal.trailers.requested_by,
        "received_at": received_at,
        "applied_at": applied_at,
        "runs": runs or [],
        "processes": processes or [],
        "survivors": survivors,
        "removed": removed,
    }
    directory, name = os.path.split(signal.path)
    try:
        with Locked(directory):
            earlier = read(signal.path)
            if earlier is not None and earlier["signal_id"] == receipt["signal_id"]:
                receipt = _merged(earlier, receipt)
            replace(directory, name + SUFFIX, json.dumps(receipt, indent=1).encode() + b"\n")
    except OSError as error:
        raise SignalError(f"cannot write the receipt of {signal.path}: {error.strerror}") from None
    return receipt


def _merged(earlier: Receipt, later: Receipt) -> Receipt:
    """Both owners' parts. Applied to anybody is applied, however many others refused it."""
    known = {outcome["run_id"]: outcome for outcome in [*earlier["runs"], *later["runs"]]}
    processes = {(p["run_id"], p["pid"], p["started_at"]): p for p in [*earlier["processes"], *later["processes"]]}
    return {
        **later,
        "state": "applied" if "applied" in (earlier["state"], later["state"]) else later["state"],
        "received_at": earlier["received_at"] or later["received_at"],
        "applied_at": later["applied_at"] or earlier["applied_at"],
        "runs": list(known.values()),
        "processes": list(processes.values()),
        "survivors": _survivors(earlier, later),
        "removed": earlier["removed"] or later["removed"],
    }


def _survivors(earlier: Receipt, later: Receipt) -> int:
    """Never fewer than were found. Only an owner that is alone with its receipt can take back what it said."""
    before = {outcome["run_id"] for outcome in earlier["runs"]}
    now = {outcome["run_id"] for outcome in later["runs"]}
    if before <= now:
        return later["survivors"] if before else earlier["survivors"] + later["survivors"]
    return max(earlier["survivors"], later["survivors"]) if now <= before else earlier["survivors"] + later["survivors"]
