"""Consuming a signal: its receipt is written, and its file goes when every live run that it governs has taken it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.errors import SidecarError
from sidecar.signals import files, liveness, receipts, trailers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.signals.board import Board
    from sidecar.signals.files import Signal
    from sidecar.signals.receipts import EndedProcess, Receipt, State


def consume(
    root: str,
    signal: Signal,
    run_id: str,
    status: str,
    *,
    state: State = "applied",
    processes: Sequence[EndedProcess] = (),
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
    if _still_to_take(root, signal, {outcome["run_id"] for outcome in receipt["runs"]}):
        return receipt
    return _removed(signal, state) or receipt


def clear_leftovers(root: str, board: Board) -> list[str]:
    """At a start: remove aborts from before it, and whatever has expired, unless some live run is still to take it.

    The result is what to warn of.
    """
    warnings = []
    places = [(directory, kind) for directory in board.subject.directories for kind in files.FILE_NAMES]
    for directory, kind in places:
        signal = files.read(directory, kind)
        if signal is None or (verdict := board.verdict(signal)) not in ("stale", "expired"):
            continue
        if _still_to_take(root, signal, {board.subject.run_id}):
            continue
        why = "older than this run" if verdict == "stale" else "expired"
        try:
            # Before the file goes, as with every signal: whoever dies in between, or finds the disk full, repeats it.
            receipts.add(signal, "expired", received_at=trailers.timestamp(signal.arrived_at))
            if _removed(signal, "expired"):
                since = trailers.timestamp(signal.arrived_at)
                warnings.append(f"removed {signal.path}, left since {since}: {why} ({signal.reason})")
        except SidecarError as error:
            warnings.append(str(error))
    return warnings


def _removed(signal: Signal, state: State) -> Receipt | None:
    return receipts.add(signal, state, removed=True) if files.clear(signal) else None


def _still_to_take(root: str, signal: Signal, done: set[str]) -> list[str]:
    directory = os.path.dirname(signal.path)
    if signal.trailers.run_id is not None or os.path.dirname(directory) == layout.runs_directory(root):
        only = signal.trailers.run_id or os.path.basename(directory)
        live = [only] if liveness.is_live(root, only) else []
    elif directory == layout.state_directory(root):
        live = liveness.live_runs(root)
    else:
        live = liveness.live_runs(root, workspace=directory)
    return [run_id for run_id in live if run_id not in done]
