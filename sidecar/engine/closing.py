"""The end of a start: checkpoint, journal, receipt, file, in this order, so that a crash repeats a signal and never
loses it."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from sidecar.engine import idle
from sidecar.errors import SidecarError
from sidecar.signals import files
from sidecar.signals.consume import clear_leftovers, consume

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.engine.ending import Ending
    from sidecar.engine.opened import OpenRun
    from sidecar.signals.files import Signal
    from sidecar.signals.receipts import EndedProcess, State


def close(opened: OpenRun, ending: Ending) -> Ending:
    """End the run in the journal, then take the signals that this fulfils. The ending as it was journalled."""
    opened.gate.tick()
    ending = _with_late_reason(ending)
    told = {name: value for name, value in (("limit", ending.limit), ("waits", ending.waits)) if value}
    signal = ending.request.signal if ending.request else None
    taken = (signal.signal_id, signal.kind) if signal is not None else None
    opened.ledger.end(ending.status, ending.reason, opened.image.to_json, taken=taken, **told)
    if signal is not None:
        if signal.kind == "abort":
            # Before its file goes: whoever dies in between leaves it to the next one who finds it.
            _careful(opened, partial(idle.abort_governed, opened.owner, signal))
        _consume(opened, signal, ending.status)
    if not _goes_on(opened, ending):
        _take_leftovers(opened, ending)
    return ending


def _with_late_reason(ending: Ending) -> Ending:
    """A signal that was found while it was being written may have its reason by now."""
    request = ending.request
    if request is None or request.signal is None:
        return ending
    signal = files.settled(request.signal)
    reason = signal.reason if ending.reason == request.reason else ending.reason
    return replace(ending, reason=reason, request=replace(request, signal=signal, reason=signal.reason))


def _goes_on(opened: OpenRun, ending: Ending) -> bool:
    """Whether it waits for an answer, or is resumed by the next daemon without anybody: then it meets its stop."""
    resumed = ending.status == "interrupted" and bool(opened.run.details.get("detached"))
    return resumed or ending.status == "paused"


def greet(opened: OpenRun) -> None:
    """At a start: an abort from before it is not for this run, but may be for some that nobody holds."""
    for directory in opened.board.subject.directories:
        found = files.read(directory, "abort")
        if found is not None and opened.board.verdict(found) == "stale":
            _careful(opened, partial(idle.abort_governed, opened.owner, found))
    for warning in clear_leftovers(opened.owner.root, opened.board):
        opened.warn(warning)


def _take_leftovers(opened: OpenRun, ending: Ending) -> None:
    """A stop that came during the last iteration is fulfilled: it must not meet the next run."""
    board = opened.board
    board.look()
    if board.stop is not None and board.stop.signal is not None and ending.request is None:
        _consume(opened, board.stop.signal, ending.status)
    for directory in board.subject.directories:
        signal = files.read(directory, "stop")
        if signal is not None and board.verdict(signal) == "refused":
            _consume(opened, signal, ending.status, "refused")
    for warning in clear_leftovers(opened.owner.root, board):
        opened.warn(warning)
    for kind in files.FILE_NAMES:
        signal = files.read(board.subject.own_directory, kind)
        mine = ending.request.signal if ending.request else None
        if signal is not None and signal != mine and board.verdict(signal) == "applies":
            _consume(opened, signal, ending.status)  # something else was first, but who waits for it has an answer
    board.cleanup()


def _consume(opened: OpenRun, signal: Signal, status: str, state: State = "applied") -> None:
    processes = [cast("EndedProcess", asdict(process)) for process in opened.processes.ended]
    root, run_id, survivors = opened.owner.root, opened.run.run_id, opened.processes.survivors
    whole = files.settled(signal)
    _careful(
        opened,
        lambda: consume(root, whole, run_id, status, state=state, processes=processes, survivors=survivors),
    )


def _careful(opened: OpenRun, act: Callable[[], object]) -> None:
    """The run has ended, whatever becomes of the files."""
    try:
        act()
    except (SidecarError, OSError) as error:
        opened.warn(str(error))
