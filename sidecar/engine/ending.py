"""The end of a run's own thread: what it comes to, another round where that is wanted, and the steps for a failure."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio

from sidecar.agents.mask import Secrets
from sidecar.engine import run_log
from sidecar.engine.boundary import NOTED_STOP, Ending, board_of, ending_by, iterations_exhausted
from sidecar.engine.cursor.actions import Finished, LimitReached
from sidecar.engine.run import ON_FAILURE
from sidecar.engine.step import unforeseen
from sidecar.errors import REPORTED, SidecarError
from sidecar.model import run as kinds
from sidecar.model.run import RunEvent
from sidecar.signals import files, liveness
from sidecar.signals.board import Board
from sidecar.signals.consume import clear_leftovers, clear_other, consume, still_to_take
from sidecar.store.journal import OPEN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.agents.mask import Secrets
    from sidecar.engine.boundary import Ending
    from sidecar.engine.cursor.actions import Action
    from sidecar.engine.cursor.position import Error
    from sidecar.engine.execution import Execution
    from sidecar.engine.owner import Owner
    from sidecar.model.run import RunEvent
    from sidecar.signals.board import Board
    from sidecar.signals.files import Signal
    from sidecar.signals.receipts import EndedProcess
    from sidecar.store.journal import Journal, StoredRun


async def finish(opened: Execution, action: Action) -> Ending | None:
    """How the run ends; None: the workflow is done from the start again."""
    if isinstance(action, LimitReached):
        return iterations_exhausted(action)
    assert isinstance(action, Finished)
    if action.status == "completed":
        return Ending("completed", action.message)
    if await _again(opened):
        return None
    return await failed(opened, action.error or {"message": action.message})


async def failed(opened: Execution, error: Error) -> Ending:
    """The steps for a failure are done: those of the workflows that the run is in, the innermost first."""
    main, interpreter = opened.image.main, opened.interpreter
    main.error = error
    await interpreter.failed_parts(main)
    await interpreter.see_to(main, ON_FAILURE, (), {"error": error})
    limit = error.get("limit")  # of an agent: whoever reads the exit code wants to tell that from a failure
    return Ending("failed", str(error.get("message", "")), limit=str(limit) if limit else None)


async def end_between(opened: Execution, ending: Ending) -> Ending | None:
    """The run ends between two steps. None: not after all, the stop was taken back while what ran was waited for."""
    if ending.status in ("stopped", "paused"):
        await opened.batches.drained()
        opened.board.look()
        if opened.board.abort is not None:
            return opened.gate.aborted()
        if ending.status == "stopped" and opened.board.stop is None:
            opened.batches.go_on()
            return None
        return ending
    opened.processes.request_end(ending.end_reason)
    if ending.limit or ending.request is not None:
        return ending
    await opened.batches.cancel("shutdown")  # `exit` in a task ends the others
    return ending if ending.error is None else await failed(opened, ending.error)


async def _again(opened: Execution) -> bool:
    """Whether the workflow is done from the start again."""
    image = opened.image
    handling = image.definition.workflow.error_handling
    if handling.on_error != "retry_workflow" or image.main.exited:
        return False
    view = image.spaces[()].view({})
    try:
        rounds, delay_s = int(view.value(handling.retry_count)), view.seconds(handling.retry_delay_s) or 0.0
    except (SidecarError, ValueError, TypeError, OverflowError) as error:  # the last: Infinity is no number of times
        opened.warn(f"it is not known how often the workflow is to be retried: {error}")
        return False
    if image.counters.round > rounds:
        return False
    opened.ledger.commit(durable=True)
    await anyio.sleep(delay_s)
    opened.ledger.note(kinds.WORKFLOW_RETRIED, round=image.counters.round + 1)
    image.restart(opened.run.inputs)
    await opened.ledger.checkpoint(image.to_json)
    return True


def stood_as(journal: Journal, run: StoredRun) -> str:
    """What the run was before it is gone on with: one that had ended is pending since it began again."""
    last = journal.last_end(run.run_id) if run.status == "pending" else None
    return str(last.data["status"]) if last is not None else run.status


# How a run ends: checkpoint, journal, receipt, signal file, in this order, so that a crash repeats a signal and never
# loses it. Also for the open runs that nobody executes: they end in the journal, under their lock.


# For a journal that another process has locked: others wait for us, and the signal stays until it was applied.
_WAIT_S = 0.25


async def close(opened: Execution, ending: Ending) -> Ending:
    """End the run in the journal, then take the signals that this fulfils. The ending as it was journalled."""
    opened.gate.tick()
    ending = _with_late_reason(ending, opened.mask)
    data = {name: value for name, value in (("limit", ending.limit), ("waits", ending.waits)) if value}
    taken: list[Signal] = []

    def take() -> list[Signal]:  # asked when the end is written: a locked journal may have been waited for
        taken[:] = [] if ending.status in OPEN else _governing(opened.board, ending)
        return taken

    await opened.ledger.end(ending.status, ending.reason, opened.image.to_json, take=take, **data)
    if ending.status not in OPEN:
        processes = [cast("EndedProcess", asdict(process)) for process in opened.processes.ended]
        proof = _Proof(processes, opened.processes.survivors)
        _take_signals(opened.owner, opened.board, ending.status, taken, proof)
    return ending


def clear_stale_signals(opened: Execution) -> None:
    """When a run begins or goes on: an abort from before its beginning is not for it, but may be for some that nobody
    executes; then it goes."""
    for directory in opened.board.subject.directories:
        found = files.read(directory, "abort")
        if found is not None and opened.board.verdict(found) == "stale":
            _careful(opened.warn, partial(apply_to_unheld, opened.owner, found))
    for warning in clear_leftovers(opened.owner.root, opened.board, opened.mask.masked_text):
        opened.warn(warning)


# --- runs that nobody executes


def asked_meanwhile(owner: Owner, run: StoredRun) -> Ending | None:
    """How a run that nobody executed until now ends, where a signal was written meanwhile. The caller has its lock."""
    board = board_of(owner, run)
    board.look()
    request = board.abort or board.stop
    return ending_by(request, board.subject) if request is not None else None


def end_unheld(
    owner: Owner, run: StoredRun, ending: Ending, hear: Callable[[RunEvent], None], *, wait_s: float | None = None
) -> Ending:
    """End an open run that nobody executes, in the journal, for whose lock `wait_s` is waited. The caller has the lock
    of the run. The ending as it was journalled."""
    board = board_of(owner, run, owner.report)
    board.look()
    ending = _with_late_reason(ending, owner.mask_of(run.run_id))
    taken = _governing(board, ending)
    with owner.database.transaction(wait_s=wait_s):
        for handout in owner.handouts.all_held(run.run_id):
            owner.handouts.take_back(run.run_id, handout.task_id)
        event = owner.journal.end_unheld(run.run_id, ending.status, reason=ending.reason)
        for signal in taken:  # behind it: they belong to the start that they ended
            owner.journal.take_signal(run.run_id, signal.signal_id, signal.kind)
    hear(event.told)
    _take_signals(owner, board, ending.status, taken, None)
    return ending


def end_unopened(owner: Owner, run_id: str, last: int, error: Exception, hear: Callable[[RunEvent], None]) -> Ending:
    """End a run that cannot be brought into memory: the defaults of its state, or a limit, cannot be computed. The
    caller has its lock. `last`: the event behind which nobody has heard of any."""
    reason = str(error)
    if not isinstance(error, SidecarError):
        run_log.keep_traceback(owner.root, run_id, error, owner.mask_of(run_id))
        reason = unforeseen(error)
    run = owner.journal.run(run_id)
    if run.status != "running":
        owner.journal.begin(run_id, {"workflow": run.workflow, "previous_status": stood_as(owner.journal, run)})
    for event in owner.journal.events(run_id, after=last):
        hear(event.told)
    return end_unheld(owner, owner.journal.run(run_id), Ending("failed", reason), hear)


def apply_to_unheld(owner: Owner, signal: Signal) -> list[str]:
    """Apply a signal to every open run that it governs and that nobody executes; those that have ended by it.

    A stop spares a run of which an agent has a step in hand: it is noted for that run, which ends when it next reaches
    a boundary or changes driver. The file does not wait for that: an agent that never comes back would keep it there,
    and it would stop the next run.
    """
    ended = []
    for run_id in still_to_take(owner.root, signal):
        if liveness.is_live(owner.root, run_id):
            continue
        try:
            with liveness.RunLock(owner.root, run_id):
                if _apply(owner, run_id, signal):
                    ended.append(run_id)
        except liveness.RunBusy:
            continue  # somebody executes it now, and finds the signal
    return ended


def _apply(owner: Owner, run_id: str, signal: Signal) -> bool:
    """Whether the run, which is locked, has ended by the signal."""
    run = owner.journal.find(run_id)
    if run is None or run.status not in OPEN:
        close_mark(owner, run_id)
        return False
    board = board_of(owner, run)
    board.look()
    if board.verdict(signal) != "applies":
        return False
    request = board.abort or board.stop
    if request is None:  # the file is gone since
        return False
    if request.kind == "stop" and owner.handouts.all_held(run_id):
        signal.reason = owner.mask_of(run_id).masked_text(signal.reason)
        noted = {"signal_id": signal.signal_id, "reason": signal.reason, "since": signal.arrived_at, "start": run.start}
        data = {"signal": "stop", "reason": signal.reason, "source": "file", "path": signal.path}
        with owner.database.transaction(wait_s=_WAIT_S):
            owner.journal.take_signal(run_id, signal.signal_id, signal.kind, "noted")
            owner.journal.change(run_id, details={**run.details, NOTED_STOP: noted})
            event = owner.journal.append(run_id, kinds.SIGNAL, data)  # whoever has the run in memory reads it again
        owner.emit(event.told)
        consume(owner.root, signal, run_id, "running")
        return False
    end_unheld(owner, run, ending_by(request, board.subject), owner.emit, wait_s=_WAIT_S)
    return True


def see_to_signal(owner: Owner, signal: Signal) -> list[str]:
    """For a process that lives on: what a signal that stands somewhere does to runs that nobody executes, and whether
    it can go because the run that it names has ended."""
    if signal.trailers.run_id is not None and (why := clear_other(owner.root, signal)):
        owner.report(f"removed {signal.path}: {why} ({owner.mask.masked_text(signal.reason)})")
        return []
    return apply_to_unheld(owner, signal)


def take_back_beginning(root: str, journal: Journal, run: StoredRun) -> None:
    """Nobody goes on with a run that had ended, after all: it stands as it did. The caller has its lock."""
    if run.status == "pending" and run.start:
        journal.take_back_beginning(run.run_id)
        liveness.end(root, run.run_id)


def close_mark(owner: Owner, run_id: str) -> None:
    """A run whose owner died between its end in the journal and its last file, or before the journal knew of it. The
    caller has its lock."""
    if owner.journal.find(run_id) is None:
        liveness.forget(owner.root, run_id)
    else:
        liveness.end(owner.root, run_id)


# --- inside


class _Proof(NamedTuple):
    """What became of the processes of a run: for the receipt."""

    processes: Sequence[EndedProcess]
    survivors: int


def _governing(board: Board, ending: Ending) -> list[Signal]:
    """What a run that ends takes: the signal that ends it, and every other that is for it, whatever came first."""
    board.look()
    mine = ending.request.signal if ending.request else None
    found = [files.read(directory, kind) for directory in board.subject.directories for kind in files.FILE_NAMES]
    others = [one for one in found if one is not None and board.verdict(one) == "applies"]
    first = [mine] if mine is not None else []
    return first + [one for one in others if mine is None or one.signal_id != mine.signal_id]


def _take_signals(
    owner: Owner,
    board: Board,
    status: str,
    taken: Sequence[Signal],
    proof: _Proof | None,
) -> None:
    """The run has ended, whatever becomes of the files: receipts, then the signal files, then the mark that it is open.

    `proof`: of a run that was executed here. Then the signals are applied to the runs that nobody executes, too; before
    a file goes, because whoever dies in between leaves it to the next one who finds it.
    """
    root, run_id, warn = owner.root, board.subject.run_id, board.report
    mask = owner.mask_of(run_id)
    processes, survivors = (proof.processes, proof.survivors) if proof else ((), 0)

    def take(signal: Signal, state: Any = "applied") -> None:
        whole = files.settled(signal)
        whole.reason = mask.masked_text(whole.reason)
        consume(root, whole, run_id, status, state=state, processes=processes, survivors=survivors)

    for signal in taken:
        if proof is not None:
            _careful(warn, partial(apply_to_unheld, owner, signal))
        _careful(warn, partial(take, signal))
    for directory in board.subject.directories:
        refused = files.read(directory, "stop")
        if refused is not None and board.verdict(refused) == "refused":
            _careful(warn, partial(take, refused, "refused"))
    for warning in clear_leftovers(root, board, mask.masked_text):
        warn(warning)
    liveness.end(root, run_id)
    board.cleanup()


def _with_late_reason(ending: Ending, mask: Secrets) -> Ending:
    """A signal that was found while it was being written may have its reason by now. Without secrets, as it is told."""
    request = ending.request
    if request is not None and request.signal is not None:
        signal = files.settled(request.signal)
        if signal is not request.signal:  # else nothing came late, and the request may say more: a stop became an abort
            reason = signal.reason if ending.reason == request.reason else ending.reason
            ending = replace(ending, reason=reason, request=replace(request, signal=signal, reason=signal.reason))
    waits = mask.masked_event(ending.waits) if ending.waits is not None else None
    return replace(ending, reason=mask.masked_text(ending.reason), waits=waits)


def _careful(warn: Callable[[str], None], act: Callable[[], object]) -> None:
    try:
        act()
    except (*REPORTED, OSError) as error:
        warn(str(error))
