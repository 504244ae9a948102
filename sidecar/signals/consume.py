"""Consuming a signal: its receipt is written, and its file goes when every open run that it governs has taken it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.errors import SidecarError
from sidecar.signals import files, liveness, receipts, trailers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from sidecar.signals.board import Board
    from sidecar.signals.files import Signal
    from sidecar.signals.receipts import Receipt, ReceiptProcess, State


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
    now = trailers.timestamp(time.time())
    receipt = receipts.add(
        signal,
        state,
        received_at=trailers.timestamp(signal.arrived_at),
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
        candidates = liveness.open_runs(root, workspace=workspace)
    return [
        run_id
        for run_id in candidates
        if run_id not in done and only in (None, run_id) and _is_meant(signal, liveness.mark(root, run_id))
    ]


def clear_leftovers(root: str, board: Board, shown: Callable[[str], str] = str) -> list[str]:
    """Remove what no run is to take any more: aborts from before the run, what has expired, what was for a run that has
    ended, and what this run took before somebody died. The result is what to warn of. `shown`: a reason as it may be
    told."""
    warnings = []
    places = [(directory, kind) for directory in board.subject.directories for kind in files.FILE_NAMES]
    for directory, kind in places:
        signal = files.read(directory, kind)
        if signal is None or (verdict := board.verdict(signal)) in ("applies", "refused"):
            continue
        signal.reason = shown(signal.reason)
        try:
            if gone := _clear_leftover(root, signal, verdict, board.subject.run_id):
                since = trailers.timestamp(signal.arrived_at)
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
    if only is None or liveness.mark(root, only) is not None:
        return None
    known = os.path.isdir(layout.run_directory(root, only))
    why = f"run {only} has ended" if known else f"this project has no run {only}"
    return why if _refuse(signal, why) else None


def _clear_leftover(root: str, signal: Signal, verdict: str, run_id: str) -> str | None:
    """Why it was removed; None where it is left, because some open run is still to take it."""
    if verdict == "other run":
        return clear_other(root, signal)
    if verdict != "expired" and still_to_take(root, signal, {run_id}):
        return None
    if verdict == "taken":  # whoever took it died before the file was gone
        return "taken before" if _removed(signal, "applied") else None
    # Before the file goes, as with every signal: whoever dies in between, or finds the disk full, repeats it.
    receipts.add(signal, "expired", received_at=trailers.timestamp(signal.arrived_at))
    return ("older than this run" if verdict == "stale" else "expired") if _removed(signal, "expired") else None


def _refuse(signal: Signal, why: str) -> bool:
    receipts.add(signal, "refused", received_at=trailers.timestamp(signal.arrived_at), reason=why)
    return _removed(signal, "refused", why) is not None


def _removed(signal: Signal, state: State, why: str | None = None) -> Receipt | None:
    return receipts.add(signal, state, reason=why, removed=True) if files.clear(signal) else None


def _is_meant(signal: Signal, mark: liveness.Mark | None) -> bool:
    """Whether a run is still to take it: it is open, and the abort is not older than the run."""
    return mark is not None and not (signal.kind == "abort" and signal.occurrence in mark.standing)
