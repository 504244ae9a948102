"""Ends a run: decides how, runs the steps for a failure, then writes checkpoint and journal in one transaction, then
receipts, signal files and the mark that the run is open.

The order of these writes matters: after a crash between two of them a signal is applied again, and never lost. Open
runs that no process executes end here too, in the journal, under their run lock, and so do executions whose process
died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Literal, cast

import anyio

from sidecar.agents import lineage
from sidecar.agents.output import Secrets
from sidecar.engine import run_log
from sidecar.engine.boundary import NOTED_STOP, Ending, board_of, ending_by, iterations_exhausted
from sidecar.engine.cursor.actions import Action, Finished, LimitReached
from sidecar.engine.cursor.position import Error
from sidecar.engine.execution import Execution
from sidecar.engine.owner import Owner
from sidecar.engine.processes import Processes
from sidecar.engine.run import ON_FAILURE
from sidecar.engine.step import unexpected
from sidecar.errors import REPORTED, SidecarError, StoreError
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.signals import files, run_lock
from sidecar.signals.board import Board
from sidecar.signals.files import Signal
from sidecar.signals.receipts import ReceiptProcess, clear_other, clear_stale, consume, still_to_take
from sidecar.store.journal import OPEN, Event, Journal, StoredRun

_MOST_DEATHS = 3  # of owners at the same step
_PLACES = (kinds.STEP_STARTED, kinds.STEP_COMPLETED, kinds.ITERATION)
_LOCK_WAIT_S = 0.25  # for a journal that another process has locked; a signal that cannot be applied now stays


# --- 1. the decision


async def decide(execution: Execution, action: Action) -> Ending | None:
    """How the run ends at the last action of its main thread; None: the workflow starts again (`retry_workflow`)."""
    if isinstance(action, LimitReached):
        return iterations_exhausted(action)
    assert isinstance(action, Finished)
    if action.status == "completed":
        return Ending("completed", action.message)
    if await _workflow_restarts(execution):
        return None
    return await run_failure_steps(execution, action.error or {"message": action.message})


async def decide_early(execution: Execution, ending: Ending) -> Ending | None:
    """How a run ends that is to end before its last step; None: it goes on, since the stop was cancelled while its
    tasks were finishing."""
    if ending.status in ("stopped", "paused"):
        await execution.batches.drained()
        execution.board.refresh()
        request = execution.board.request
        if request is not None and request.kind == "abort":
            return execution.guard.aborted()
        if ending.status == "stopped" and request is None:
            execution.batches.draining = False
            return None
        return ending
    execution.processes.request_end(ending.end_reason)
    if ending.limit or ending.request is not None:
        return ending
    await execution.batches.cancel("shutdown")  # `exit` in a task ends the others
    return ending if ending.error is None else await run_failure_steps(execution, ending.error)


async def _workflow_restarts(execution: Execution) -> bool:
    run = execution.run
    handling = run.definition.workflow.error_handling
    if handling.on_error != "retry_workflow" or run.main.exited:
        return False
    view = run.states[()].view({})
    try:
        rounds, delay_s = int(view.value(handling.retry_count)), view.seconds(handling.retry_delay_s) or 0.0
    except (SidecarError, ValueError, TypeError, OverflowError) as error:  # the last: Infinity is no number of times
        execution.warn(f"it is not known how often the workflow is to be retried: {error}")
        return False
    if run.counters.round > rounds:
        return False
    execution.ledger.commit(durable=True)
    await anyio.sleep(delay_s)
    execution.ledger.record(kinds.WORKFLOW_RETRIED, round=run.counters.round + 1)
    run.restart(execution.stored.inputs)
    await execution.ledger.checkpoint()
    return True


# --- 2. the steps for a failure


async def run_failure_steps(execution: Execution, error: Error) -> Ending:
    """Run the failure steps of the workflows that the run is in, the innermost first; the run then ends as failed."""
    main, interpreter = execution.run.main, execution.interpreter
    main.error = error
    await interpreter.run_failure_steps_of_included(main)
    await interpreter.run_failure_steps(main, ON_FAILURE, (), {"error": error})
    limit = error.get("limit")  # of an agent: the exit code tells it from other failures
    return Ending("failed", str(error.get("message", "")), limit=str(limit) if limit else None)


# --- 3. checkpoint, journal, receipts, signal files


async def end_run(execution: Execution, ending: Ending) -> Ending:
    """Write the end of an execution; the result is the ending as it was journalled."""
    execution.guard.tick()
    ending = _as_journalled(ending, execution.mask)
    data = {name: value for name, value in (("limit", ending.limit), ("waits", ending.waits)) if value}
    taken: list[Signal] = []

    def take() -> list[Signal]:  # read when the end is written: a locked journal may have been waited for
        taken[:] = [] if ending.status in OPEN else _signals_for(execution.board, ending)
        return taken

    await execution.ledger.end(ending.status, ending.reason, take=take, **data)
    if ending.status not in OPEN:
        _consume_signals(execution.owner, execution.board, ending.status, taken, execution.processes)
    return ending


async def end_execution(execution: Execution) -> Ending:
    """The same where the journal may be lost: listeners get the end then, too. In the journal the run has no owner,
    which is read as interrupted as well. StoreError: it was to end otherwise."""
    if execution.lost is None:
        assert execution.ending is not None
        try:
            return await end_run(execution, execution.ending)
        except StoreError as error:
            execution.lost = error
    ending = execution.ending
    if ending is None or ending.status != "interrupted":
        ending = Ending("interrupted", str(execution.lost))
    execution.emit_unjournalled(kinds.RUN_ENDED, {"status": ending.status, "reason": ending.reason})
    if ending is not execution.ending:
        raise execution.lost
    return ending


def end_unheld(
    owner: Owner,
    stored: StoredRun,
    ending: Ending,
    on_event: Callable[[RunEvent], None],
    *,
    wait_s: float | None = None,
) -> Ending:
    """The same for an open run that no process executes: its last checkpoint stays. The caller has the run lock.
    `wait_s`: how long to wait for a locked journal."""
    board = board_of(owner, stored, owner.report)
    board.refresh()
    ending = _as_journalled(ending, owner.mask_of(stored.run_id))
    taken = _signals_for(board, ending)
    with owner.database.transaction(wait_s=wait_s):
        for handout in owner.handouts.all_held(stored.run_id):
            owner.handouts.take_back(stored.run_id, handout.task_id)
        event = owner.journal.end_unheld(stored.run_id, ending.status, reason=ending.reason)
        for signal in taken:  # after the end: they belong to the execution that they ended
            owner.journal.take_signal(stored.run_id, signal.signal_id, signal.kind)
    on_event(event.run_event)
    _consume_signals(owner, board, ending.status, taken)
    return ending


def end_unloadable(
    owner: Owner, run_id: str, last_seq: int, error: Exception, on_event: Callable[[RunEvent], None]
) -> Ending:
    """The same for a run that cannot be loaded: the defaults of its state, or a limit, cannot be computed. The caller
    has the run lock. `last_seq`: the last event that was emitted."""
    reason = str(error)
    if not isinstance(error, SidecarError):
        run_log.keep_traceback(owner.root, run_id, error, owner.mask_of(run_id))
        reason = unexpected(error)
    stored = owner.journal.run(run_id)
    if stored.status != "running":
        journal_start(owner, stored)
    for event in owner.journal.events(run_id, after=last_seq):
        on_event(event.run_event)
    return end_unheld(owner, owner.journal.run(run_id), Ending("failed", reason), on_event)


def _as_journalled(ending: Ending, mask: Secrets) -> Ending:
    """Without secrets, and with the reason of a signal that was still being written when it was found."""
    request = ending.request
    if request is not None and request.signal is not None:
        signal = files.with_late_content(request.signal)
        if signal is not request.signal:  # else the request may say more than its signal: a stop became an abort
            reason = signal.reason if ending.reason == request.reason else ending.reason
            ending = replace(ending, reason=reason, request=replace(request, signal=signal, reason=signal.reason))
    waits = mask.masked_event(ending.waits) if ending.waits is not None else None
    return replace(ending, reason=mask.masked_text(ending.reason), waits=waits)


def _signals_for(board: Board, ending: Ending) -> list[Signal]:
    """The signals that a run takes with its end: the one that ends it first, then every other that applies to it."""
    board.refresh()
    first = [ending.request.signal] if ending.request and ending.request.signal else []
    others = [signal for signal in _read(board, *files.FILE_NAMES) if board.relevance(signal) == "applies"]
    return first + [signal for signal in others if not first or signal.signal_id != first[0].signal_id]


def _consume_signals(
    owner: Owner, board: Board, status: str, taken: Sequence[Signal], executed: Processes | None = None
) -> None:
    """Write the receipts, remove the signal files, then the mark that the run is open. No error keeps the rest undone.

    `executed`: the processes of a run that was executed here. Its signals are then applied to runs that no process
    executes too, before a file is removed: a file that a crash leaves is found again.
    """
    root, run_id, mask = owner.root, board.scope.run_id, owner.mask_of(board.scope.run_id)
    processes = [cast("ReceiptProcess", asdict(process)) for process in executed.ended] if executed else []
    survivors = executed.survivors if executed else 0

    def consume_one(signal: Signal, state: Literal["applied", "refused"]) -> None:
        with _reported(board.report):
            whole = files.with_late_content(signal)
            whole.reason = mask.masked_text(whole.reason)
            consume(root, whole, run_id, status, state=state, processes=processes, survivors=survivors)

    for signal in taken:
        if executed is not None:
            with _reported(board.report):
                apply_to_unheld(owner, signal)
        consume_one(signal, "applied")
    for signal in _read(board, "stop"):
        if board.relevance(signal) == "refused":
            consume_one(signal, "refused")
    for warning in clear_stale(root, board, mask.masked_text):
        board.report(warning)
    run_lock.end(root, run_id)
    board.cleanup()


# --- executions whose process died


def end_abandoned(owner: Owner, stored: StoredRun) -> StoredRun:
    """Journal the end of an execution that no process continues, before another one begins: its owner died, or the
    agent that drove the run is relieved of it. The run as it is then; nothing where its last execution has an end."""
    if stored.status != "running":
        return stored
    if stored.driver == "server":
        owner.journal.end(stored.run_id, "interrupted", reason="its owner died", data={"owner_died": True})
    else:
        reason = "the agent that drove it was relieved"
        owner.journal.end(stored.run_id, "interrupted", reason=reason, data={"relieved": True})
    return owner.journal.run(stored.run_id)


def end_deadly(owner: Owner, stored: StoredRun) -> Event | None:
    """The end of a run at whose same step its owner died too often, journalled where it is not yet: it is left to a
    person. None where it may be resumed. Its step may be what kills the owner, by its memory for one: resumed for
    ever, it would take every other run along."""
    events = owner.journal.events(stored.run_id)
    if events and events[-1].kind == kinds.RUN_ENDED and events[-1].data.get("gave_up"):
        return events[-1]
    step, count = _deaths(events, lineage.boot_id())
    if stored.status != "running" or count < _MOST_DEATHS:
        return None
    reason = (
        f"its owner died {count} times at step {step or '1'}, so it is left to you; when that is mended: "
        f"sidecar resume {stored.run_id} --detach"
    )
    data = {"owner_died": True, "gave_up": True}
    with run_lock.RunLock(owner.root, stored.run_id):
        return owner.journal.end(stored.run_id, "interrupted", reason=reason, data=data)


def _deaths(events: Iterable[Event], boot_id: str) -> tuple[str | None, int]:
    """The step where the owner died last, and how often it did so there: in the same iteration, since the machine was
    started, and without a clean end in between.

    A start that did not come to any step counts for where the one before died: there it was about to go on. An agent
    that was relieved of the run changes nothing: what killed the owner is still there.
    """
    place: dict[str, Any] = {}  # where the run is
    last: dict[str, Any] = {}  # where its owner died last
    count, boot, is_open = 0, None, False

    def died() -> None:
        nonlocal count, last
        known = boot == boot_id
        count = (count + 1 if place == last else 1) if known else 0
        last = dict(place)

    for event in events:
        if event.kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED):
            boot, is_open = event.data.get("boot"), True
        elif event.kind in _PLACES and event.data.get("task") is None:
            if event.kind == kinds.ITERATION:
                place["iteration"] = (event.data["step"], event.data["iteration"])
            else:
                place["step"] = event.data["step"]  # its key, with the iterations around it
        elif event.kind == kinds.RUN_ENDED:
            is_open = False
            if event.data.get("owner_died") and not event.data.get("gave_up"):
                died()
            elif not event.data.get("relieved"):
                count = 0
    if is_open:
        died()
    return place.get("step"), count


def end_unexecuted(root: str, journal: Journal, run_id: str, why: str) -> None:
    """The end of a run that no process took. The caller has its run lock."""
    journal.end_unheld(run_id, "failed", reason=f"it was not executed: {why}")
    run_lock.end(root, run_id)


# --- signals for runs that no process executes


def ending_of_unheld(owner: Owner, stored: StoredRun) -> Ending | None:
    """How an open run ends that no process executed until now, where a signal applies to it. The caller has its run
    lock."""
    board = board_of(owner, stored)
    board.refresh()
    request = board.request
    return ending_by(request, board.scope) if request is not None else None


def handle_signal(owner: Owner, signal: Signal) -> list[str]:
    """Apply a signal to runs that no process executes, or remove it where the run that it names has ended. The result
    are the runs that it ended."""
    if signal.trailers.run_id is not None and (why := clear_other(owner.root, signal)):
        owner.report(f"removed {signal.path}: {why} ({owner.mask.masked_text(signal.reason)})")
        return []
    return apply_to_unheld(owner, signal)


def clear_stale_signals(execution: Execution) -> None:
    """At the start of an execution: an abort that is older than the run's beginning is not for it. It is applied to
    the runs that no process executes, and removed."""
    for signal in _read(execution.board, "abort"):
        if execution.board.relevance(signal) == "stale":
            with _reported(execution.warn):
                apply_to_unheld(execution.owner, signal)
    for warning in clear_stale(execution.owner.root, execution.board, execution.mask.masked_text):
        execution.warn(warning)


def apply_to_unheld(owner: Owner, signal: Signal) -> list[str]:
    """Apply a signal to every open run that it is for and that no process executes; those that it ended."""
    ended = []
    for run_id in still_to_take(owner.root, signal):
        if run_lock.is_live(owner.root, run_id):
            continue
        try:
            with run_lock.RunLock(owner.root, run_id):
                if _apply(owner, run_id, signal):
                    ended.append(run_id)
        except run_lock.RunBusy:
            continue  # a process executes it now, and finds the signal
    return ended


def _apply(owner: Owner, run_id: str, signal: Signal) -> bool:
    """Whether the run, which is locked, has ended by the signal."""
    stored = owner.journal.find(run_id)
    if stored is None:  # its owner died before the journal had the run
        run_lock.forget(owner.root, run_id)
        return False
    if stored.status not in OPEN:  # its owner died between the end in the journal and this mark
        run_lock.end(owner.root, run_id)
        return False
    board = board_of(owner, stored)
    board.refresh()
    request = board.request
    if board.relevance(signal) != "applies" or request is None:  # None: the file was removed meanwhile
        return False
    if request.kind == "stop" and owner.handouts.all_held(run_id):
        _note_stop(owner, stored, signal)
        return False
    end_unheld(owner, stored, ending_by(request, board.scope), owner.emit, wait_s=_LOCK_WAIT_S)
    return True


def _note_stop(owner: Owner, stored: StoredRun, signal: Signal) -> None:
    """Keep a stop for a run of which an agent has a step in hand: it ends at its next boundary, or when it changes
    driver. The file does not wait for that: an agent that never reports would leave it there for the next run."""
    signal.reason = owner.mask_of(stored.run_id).masked_text(signal.reason)
    noted = {"signal_id": signal.signal_id, "reason": signal.reason, "since": signal.arrived_at, "start": stored.start}
    data = {"signal": "stop", "reason": signal.reason, "source": "file", "path": signal.path}
    with owner.database.transaction(wait_s=_LOCK_WAIT_S):
        owner.journal.take_signal(stored.run_id, signal.signal_id, signal.kind, "noted")
        owner.journal.change(stored.run_id, details={**stored.details, NOTED_STOP: noted})
        # A process that has the run in memory loads it again after an event that is not its own.
        event = owner.journal.append(stored.run_id, kinds.SIGNAL, data)
    owner.emit(event.run_event)
    consume(owner.root, signal, stored.run_id, "running")


# --- beginnings


def journal_start(owner: Owner, stored: StoredRun, **data: Any) -> dict[str, Any]:
    """Journal that a run starts, or is resumed; the data of that event. It has the status that the run had before: the
    resume of one that had ended has made it pending."""
    last = owner.journal.last_end(stored.run_id) if stored.status == "pending" else None
    was = stored.status if last is None else last.data["status"]
    data = {"workflow": stored.workflow, "previous_status": was, **data}
    owner.journal.begin(stored.run_id, data)
    return data


def revert_beginning(root: str, journal: Journal, stored: StoredRun) -> None:
    """A run that had ended is not resumed after all: it gets its former status again. The caller has its run lock."""
    if stored.status == "pending" and stored.start:
        journal.take_back_beginning(stored.run_id)
        run_lock.end(root, stored.run_id)


def _read(board: Board, *signal_kinds: Literal["stop", "abort"]) -> list[Signal]:
    """The signals that are now in the directories of a run."""
    found = [files.read(directory, kind) for directory in board.scope.directories for kind in signal_kinds]
    return [signal for signal in found if signal is not None]


@contextmanager
def _reported(report: Callable[[str], None]) -> Iterator[None]:
    """An error with a file of one signal is reported, and the others are dealt with."""
    try:
        yield
    except (*REPORTED, OSError) as error:
        report(str(error))
