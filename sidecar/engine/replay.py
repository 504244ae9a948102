"""Loads a run that a process has left: the last checkpoint and the events since. A step in flight when the process died
is executed again.

The cursor is pure: the same outcomes lead it to the same place. So nothing but the outcome of each step is journalled
while a run executes. A step whose process died has none: it is executed again, as one more attempt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from sidecar.catalog.workflows import Definition, restore
from sidecar.engine import approval
from sidecar.engine.cursor import moves
from sidecar.engine.cursor.actions import (
    ActionFailed,
    Answer,
    Boundary,
    Completed,
    Delay,
    EnclosingStepFailed,
    Outcome,
    Passed,
)
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import definition_changed
from sidecar.engine.owner import Owner
from sidecar.engine.parallel import open_batches
from sidecar.engine.run import Run, Thread
from sidecar.model import events as kinds
from sidecar.state.reactive import Write
from sidecar.store.journal import Event, Journal, StoredRun

CHANGED = "definition"  # in a run's details: the one it was resumed with, in place of the first


def definition_of(journal: Journal, run: StoredRun) -> dict[str, Any]:
    """The record of the definition that the run uses: the one it was started with, or resumed with."""
    record: dict[str, Any] = run.details.get(CHANGED) or json.loads(journal.definition(run.run_id))
    return record


def load(owner: Owner, stored: StoredRun, definition: Definition | None = None) -> Run:
    """The run from its last checkpoint and the events after it.

    `definition`: in place of the one that it has; DefinitionChanged where the run does not fit into it.
    """
    run = _load(owner, stored)
    if definition is None:
        return run
    try:
        # The journal belongs to the old definition: only the place where the run stands is carried over.
        moved = Run.restore(json.loads(json.dumps(run.to_json())), definition, owner.script)
    finally:
        run.states.close()
    try:
        events = owner.journal.events(stored.run_id)
        refuse(moved.main, {event.data["step"] for event in events if event.kind == kinds.STEP_COMPLETED})
    except BaseException:
        moved.states.close()
        raise
    return moved


def _load(owner: Owner, stored: StoredRun) -> Run:
    checkpoint = owner.checkpoints.last(stored.run_id)
    definition = restore(definition_of(owner.journal, stored))
    if checkpoint is None:
        return Run.begin(definition, stored.inputs, owner.script)
    run = Run.restore(checkpoint.content, definition, owner.script)
    replay(run, owner.journal.events(stored.run_id, after=checkpoint.content["seq"]), checkpoint.at)
    run.states.take_traces()  # the journal has them already
    return run


def prepare_resume(
    owner: Owner, stored: StoredRun, run: Run, feedback: str | None, *, approve: bool = False
) -> str | None:
    """At a resume: back to the last boundary, with the feedback of a person; the agents that had steps in hand are
    gone. Nothing where the run has not begun. The result is the feedback without secrets."""
    if feedback is not None:
        feedback = owner.mask_of(stored.run_id).masked_text(feedback)
    if not stored.start:
        return feedback
    for handout in owner.handouts.all_held(stored.run_id):
        owner.handouts.take_back(stored.run_id, handout.task_id)
    _back_to_boundary(run, interrupted=stored.status in ("running", "interrupted"))
    run.states.set_feedback(feedback)
    gate = approval.gate_of(owner.journal, stored)
    if gate is not None:
        run.add_answer(gate["step"], approval.answer_text(gate, feedback, approved=approve))
    elif feedback is not None:
        run.pending_feedback.append(feedback)
    return feedback


def _back_to_boundary(run: Run, *, interrupted: bool) -> None:
    """Move each thread to its last boundary for a resume, or past the step that failed where the workflow wants that.

    `interrupted`: the run did not end, but lost its owner. Where it was about to end with a failure it still does, and
    its failure steps continue; else these are done, and another failure starts its own.
    """
    main, wanted, ending = run.main, run.definition.workflow.on_resume, run.main.cursor.state.ending
    fails = ending is not None and ending.status == "failed"
    if not interrupted:
        main.failure_threads = {}
    for thread in main.walk_all():
        if thread is main and fails and interrupted:
            continue
        # An attempt that is over is not repeated: a failure that the cursor still decides about, or a task that is over
        # and was not reported to its batch.
        unreported = thread.cursor.is_over and not thread.reported
        is_main = thread.parent is None and not thread.is_failure_thread
        if thread.cursor.state.failure is None and (is_main or not unreported):
            thread.cursor = thread.cursor.resumed(reset_error_counts=wanted.reset_error_counts)
            thread.failure_threads = thread.failure_threads if thread is main or not thread.reported else {}
            thread.reported = False
    if fails and not wanted.retry_failed_steps and not interrupted and main.cursor.state.frames:
        state = moves.without_current_batch(main.cursor.state)
        main.cursor = Cursor(moves.advance(state))
        main.children = {place: child for place, child in main.children.items() if place[0] in state.batches}


_BETWEEN_STARTS = frozenset({kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.RUN_ENDED})


def replay(run: Run, events: Iterable[Event], since: float) -> None:
    """Apply the events after the checkpoint, which was written at `since`."""
    threads = {thread.key: thread for thread in run.main.walk_all()}
    for event in events:
        for path, writes in event.writes:
            changes = [Write(tuple(to), value, operation) for to, value, operation in writes]
            run.states[tuple(path)].state.update(changes)
        _replay_one(run, event, threads)
        if event.kind not in _BETWEEN_STARTS:  # nothing executed the run before these
            run.counters.duration_s += max(event.at - since, 0.0)
        since = event.at


def _replay_one(run: Run, event: Event, threads: dict[str, Thread]) -> None:
    data = event.whole
    if event.kind == kinds.TASK_STARTED and data["thread"] in threads:
        parent = threads[data["thread"]]
        pass_boundaries(parent)
        action = next(one for one in open_batches(parent) if one.batch == data["batch"])
        child = run.start_task(parent, action, data["index"], data["names"])
        threads[child.key] = child
    elif event.kind == kinds.TASK_ENDED and data["thread"] in threads:
        child = threads[data["thread"]]
        run.end_task(child, data["error"])
        _add_failure_threads(threads, child.parent)
    elif event.kind == kinds.FAILURE_STEPS and data["thread"] in threads:
        of = threads[data["thread"]]
        run.start_failure_steps(of, data["handler"], tuple(data["path"]), data["names"])
        _add_failure_threads(threads, of)
    elif event.kind == kinds.AGENT_STARTED:
        run.counters.processes += 1
    elif event.kind == kinds.USAGE:
        run.counters.cost_usd += data.get("cost_usd") or 0.0
        run.counters.tokens += data.get("tokens") or 0
    elif event.kind == kinds.REDIRECTED:
        run.add_redirect(data["step"], data["text"], data.get("name"))
    elif event.kind == kinds.FEEDBACK:
        run.use_feedback(data["step"], data["text"])
    thread = threads.get(data["thread"]) if "outcome" in data else None
    if thread is not None:
        if data["outcome"][0] != "failed_around":  # that may come before a boundary, which was not passed then
            pass_boundaries(thread)
        thread.error = data.get("error", thread.error)
        run.move(thread, thread.cursor.after(_outcome(run, thread, data["outcome"])))
        _add_failure_threads(threads, thread)


def _add_failure_threads(threads: dict[str, Thread], thread: Thread | None) -> None:
    """The next events may be of its failure steps."""
    if thread is not None:
        threads.update({each.key: each for each in [*thread.failure_threads.values(), *thread.pending_failure_steps]})


def _outcome(run: Run, thread: Thread, recorded: list[Any]) -> Outcome:
    kind, *rest = recorded
    if kind == "answer":
        return Answer(rest[0])
    if kind == "completed":
        return Completed()
    if kind == "left":
        run.leave_included(thread)
        return Completed()
    if kind == "failed":
        return ActionFailed(rest[0])
    if kind == "failed_around":
        return EnclosingStepFailed(rest[1], rest[0])
    assert kind == "included"
    record, inputs, name, fields = rest
    includer = run.states[thread.here].definition
    definition = restore(record) if record else includer.components[name]
    return run.include(thread, definition, inputs, fields)


def pass_boundaries(thread: Thread) -> None:
    """Pass the boundaries and delays, which are not journalled: a later event shows that they were passed."""
    while isinstance(thread.cursor.action, Boundary | Delay):
        waited = isinstance(thread.cursor.action, Delay)
        thread.cursor = thread.cursor.after(Completed() if waited else Passed())


_INSIDE = "[/~."  # what follows the key of a step in the keys of what is done inside it


def refuse(main: Thread, completed: Collection[str]) -> None:
    """DefinitionChanged where the run would execute a completed step again, because the definition has moved it behind
    the place where a thread stands."""
    for thread in main.walk():
        for step_id, key in _ahead(thread):
            if any(one.startswith(key) and one[len(key) : len(key) + 1] in ("", *_INSIDE) for one in completed):
                where = "stands behind the step where the run is now, and would be done again"
                raise definition_changed(f"step {step_id!r}, which the run has done, {where}")


def _ahead(thread: Thread) -> Iterator[tuple[str, str]]:
    """The steps after those that a thread is in, with the keys that they will have."""
    state = thread.cursor.state
    for level, frame in enumerate(state.frames):
        for place in range(frame.place + 1, len(frame.steps)):
            moved = state._replace(frames=(*state.frames[:level], frame._replace(place=place, step=frame.steps[place])))
            yield frame.steps[place].id, thread.step_key(moved)
