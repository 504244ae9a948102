"""Receipts: what became of the last signal in a place, in a JSON file beside it.

A signal is consumed here: its receipt is written, and its file goes when every open run that it governs has taken it.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeGuard

from sidecar import layout
from sidecar.errors import SidecarError, SignalError
from sidecar.signals import files, run_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sidecar.signals.board import Board
    from sidecar.signals.files import Signal

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
        with files.Locked(directory):
            earlier = read(signal.path)
            if earlier is not None and earlier["signal_id"] == receipt["signal_id"]:
                receipt = _merged(earlier, receipt)
            files.replace(directory, name + SUFFIX, json.dumps(receipt, indent=1).encode() + b"\n")
    except OSError as error:
        raise SignalError(f"cannot write the receipt of {signal.path}: {error.strerror}") from None
    return receipt


def consume(
    root: str,
    signal: Signal,
    run_id: str,
    status: str,
    *,
    state: State = "applied",
    processes: Sequence[ReceiptProcess] = (),
    survivors: int = 0,
) -> Receipt:
    """One run has taken the signal, or has refused it: say so, and remove the file if it was the last one.

    The caller has journalled the run's end before. Whoever dies in here repeats it; nobody loses it. Each run adds
    itself to the receipt before it asks who is left, under one lock, so the last one always knows that it is.
    """
    now = files.timestamp(time.time())
    receipt = add(
        signal,
        state,
        received_at=files.timestamp(signal.arrived_at),
        applied_at=now if state == "applied" else None,
        runs=[{"run_id": run_id, "status": status}],
        processes=list(processes),
        survivors=survivors,
    )
    if still_to_take(root, signal, {outcome["run_id"] for outcome in receipt["runs"]}):
        return receipt
    return _removed(signal, state) or receipt


def still_to_take(root: str, signal: Signal, done: Collection[str] = ()) -> list[str]:
    """The open runs that the signal governs and is meant for, but for those that are done with it."""
    directory = os.path.dirname(signal.path)
    only = signal.trailers.run_id
    if os.path.dirname(directory) == layout.runs_directory(root):
        candidates = [os.path.basename(directory)]
    else:
        workspace = None if directory == layout.state_directory(root) else directory
        candidates = run_lock.open_runs(root, workspace=workspace)
    return [
        run_id
        for run_id in candidates
        if run_id not in done and only in (None, run_id) and _is_meant(signal, run_lock.mark(root, run_id))
    ]


def clear_stale(root: str, board: Board, shown: Callable[[str], str] = str) -> list[str]:
    """Remove what no run is to take any more: aborts from before the run, what has expired, what was for a run that has
    ended, and what this run took before somebody died. The result is what to warn of. `shown`
    masks a reason."""
    warnings = []
    places = [(directory, kind) for directory in board.scope.directories for kind in files.FILE_NAMES]
    for directory, kind in places:
        signal = files.read(directory, kind)
        if signal is None or (relevance := board.relevance(signal)) in ("applies", "refused"):
            continue
        signal.reason = shown(signal.reason)
        try:
            if gone := _clear_one(root, signal, relevance, board.scope.run_id):
                since = files.timestamp(signal.arrived_at)
                warnings.append(f"removed {signal.path}, left since {since}: {gone} ({signal.reason})")
        except SidecarError as error:
            warnings.append(str(error))
    return warnings


def clear_ended(root: str, run_id: str) -> list[str]:
    """Remove what was written into the directory of a run after it had ended; what to warn of."""
    warnings = []
    for kind in files.FILE_NAMES:
        signal = files.read(layout.run_directory(root, run_id), kind)
        if signal is None:
            continue
        try:
            if _refuse(signal, why := f"run {run_id} had ended when it was written"):
                warnings.append(f"removed {signal.path}: {why} ({signal.reason})")
        except SidecarError as error:
            warnings.append(str(error))
    return warnings


def clear_other(root: str, signal: Signal) -> str | None:
    """Remove a signal that names a run which is not open; why, or None where that run is still to take it."""
    only = signal.trailers.run_id
    if only is None or run_lock.mark(root, only) is not None:
        return None
    known = os.path.isdir(layout.run_directory(root, only))
    why = f"run {only} has ended" if known else f"this project has no run {only}"
    return why if _refuse(signal, why) else None


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
    """Never fewer than were found. Only an owner that is alone with its receipt can lower the number."""
    before = {outcome["run_id"] for outcome in earlier["runs"]}
    now = {outcome["run_id"] for outcome in later["runs"]}
    if before <= now:
        return later["survivors"] if before else earlier["survivors"] + later["survivors"]
    return max(earlier["survivors"], later["survivors"]) if now <= before else earlier["survivors"] + later["survivors"]


def _clear_one(root: str, signal: Signal, relevance: str, run_id: str) -> str | None:
    """Why it was removed; None where it is left, because some open run is still to take it."""
    if relevance == "other run":
        return clear_other(root, signal)
    if relevance != "expired" and still_to_take(root, signal, {run_id}):
        return None
    if relevance == "taken":  # whoever took it died before the file was gone
        return "taken before" if _removed(signal, "applied") else None
    # Before the file goes, as with every signal: whoever dies in between, or finds the disk full, repeats it.
    add(signal, "expired", received_at=files.timestamp(signal.arrived_at))
    return ("older than this run" if relevance == "stale" else "expired") if _removed(signal, "expired") else None


def _refuse(signal: Signal, why: str) -> bool:
    add(signal, "refused", received_at=files.timestamp(signal.arrived_at), reason=why)
    return _removed(signal, "refused", why) is not None


def _removed(signal: Signal, state: State, why: str | None = None) -> Receipt | None:
    return add(signal, state, reason=why, removed=True) if files.clear(signal) else None


def _is_meant(signal: Signal, mark: run_lock.Mark | None) -> bool:
    """Whether a run is still to take it: it is open, and the abort is not older than the run."""
    return mark is not None and not (signal.kind == "abort" and signal.occurrence in mark.standing)
