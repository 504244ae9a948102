"""Loads a run from its last checkpoint and replays the events that were journalled after it.

The cursor is pure: the same outcomes lead it to the same place. So nothing but the outcome of each step is journalled
while a run executes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.catalog.workflows import restore
from sidecar.engine.cursor.actions import (
    ActionFailed,
    Answer,
    Boundary,
    Completed,
    Delay,
    EnclosingStepFailed,
    Parallel,
    Passed,
)
from sidecar.engine.run import Run
from sidecar.errors import DefinitionChanged
from sidecar.model import events as kinds
from sidecar.state.reactive import Write

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.cursor.actions import Outcome
    from sidecar.engine.owner import Owner
    from sidecar.engine.run import Thread
    from sidecar.store.journal import Event, Journal, StoredRun

CHANGED = "definition"  # in a run's details: the one that took the place of the one that it was started with


def definition_of(journal: Journal, run: StoredRun) -> dict[str, Any]:
    """The record of the definition that the run goes by: the one that it was started with, or was resumed with."""
    record: dict[str, Any] = run.details.get(CHANGED) or json.loads(journal.definition(run.run_id))
    return record


def load(owner: Owner, run: StoredRun, definition: Definition | None = None) -> Run:
    """The run as the journal has it: the last checkpoint, and what came after.

    `definition`: in place of the one that it has; DefinitionChanged where the run does not fit into it.
    """
    image = _load(owner, run)
    if definition is None:
        return image
    try:
        # What was journalled belongs to the definition of then: only where the run stands is taken over.
        changed = Run.restore(json.loads(json.dumps(image.to_json())), definition, owner.script)
    finally:
        image.states.close()
    try:
        events = owner.journal.events(run.run_id)
        refuse(changed.main, {event.data["step"] for event in events if event.kind == kinds.STEP_COMPLETED})
    except BaseException:
        changed.states.close()
        raise
    return changed


def _load(owner: Owner, run: StoredRun) -> Run:
    kept = owner.checkpoints.last(run.run_id)
    definition = restore(definition_of(owner.journal, run))
    if kept is None:
        return Run.begin(definition, run.inputs, owner.script)
    image = Run.restore(kept.content, definition, owner.script)
    replay(image, owner.journal.events(run.run_id, after=kept.content["seq"]), kept.at)
    image.states.take_traces()  # the journal has what was computed, and when; this was only to have the values again
    return image


_BETWEEN_STARTS = frozenset({kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.RUN_ENDED})


def replay(image: Run, events: Iterable[Event], since: float) -> None:
    """Everything that came after the checkpoint, which was written at `since`."""
    threads = {thread.key: thread for thread in image.main.walk_all()}
    for event in events:
        for path, writes in event.writes:
            changes = [Write(tuple(to), value, operation) for to, value, operation in writes]
            image.states[tuple(path)].update(changes)
        _replay_one(image, event, threads)
        if event.kind not in _BETWEEN_STARTS:  # nobody worked on the run before these
            image.counters.duration_s += max(event.at - since, 0.0)
        since = event.at


def _replay_one(image: Run, event: Event, threads: dict[str, Thread]) -> None:
    data = event.whole
    if event.kind == kinds.TASK_STARTED and data["thread"] in threads:
        parent = threads[data["thread"]]
        pass_boundaries(parent)
        action = next(one for one in _batches(parent) if one.batch == data["batch"])
        child = image.start_task(parent, action, data["index"], data["names"])
        threads[child.key] = child
    elif event.kind == kinds.TASK_ENDED and data["thread"] in threads:
        child = threads[data["thread"]]
        image.end_task(child, data["error"])
        _add_failure_threads(threads, child.parent)
    elif event.kind == kinds.FAILURE_STEPS and data["thread"] in threads:
        of = threads[data["thread"]]
        image.start_failure_steps(of, data["handler"], tuple(data["path"]), data["names"])
        _add_failure_threads(threads, of)
    elif event.kind == kinds.AGENT_STARTED:
        image.counters.processes += 1
    elif event.kind == kinds.USAGE:
        image.counters.cost_usd += data.get("cost_usd") or 0.0
        image.counters.tokens += data.get("tokens") or 0
    elif event.kind == kinds.REDIRECTED:
        image.add_redirect(data["step"], data["text"], data.get("name"))
    elif event.kind == kinds.FEEDBACK:
        image.use_feedback(data["step"], data["text"])
    thread = threads.get(data["thread"]) if "outcome" in data else None
    if thread is not None:
        if data["outcome"][0] != "failed_around":  # that may come before a boundary, which was not passed then
            pass_boundaries(thread)
        thread.error = data.get("error", thread.error)
        image.move(thread, thread.cursor.after(_outcome(image, thread, data["outcome"])))
        _add_failure_threads(threads, thread)


def _add_failure_threads(threads: dict[str, Thread], thread: Thread | None) -> None:
    """The next events may be of its failure steps."""
    if thread is not None:
        threads.update({each.key: each for each in [*thread.failure_threads.values(), *thread.pending_failure_steps]})


def _outcome(image: Run, thread: Thread, recorded: list[Any]) -> Outcome:
    word, *rest = recorded
    if word == "answer":
        return Answer(rest[0])
    if word == "completed":
        return Completed()
    if word == "left":
        image.leave_included(thread)
        return Completed()
    if word == "failed":
        return ActionFailed(rest[0])
    if word == "failed_around":
        return EnclosingStepFailed(rest[1], rest[0])
    assert word == "included"
    record, inputs, name, fields = rest
    includer = image.states[thread.here].definition
    definition = restore(record) if record else includer.components[name]
    return image.include(thread, definition, inputs, fields)


def pass_boundaries(thread: Thread) -> None:
    """Past what is never journalled: something came after it, so it was passed."""
    while isinstance(thread.cursor.action, Boundary | Delay):
        waited = isinstance(thread.cursor.action, Delay)
        thread.cursor = thread.cursor.after(Completed() if waited else Passed())


def _batches(thread: Thread) -> list[Parallel]:
    action = thread.cursor.action
    return [*([action] if isinstance(action, Parallel) else []), *thread.cursor.background]


# Whether a run would meet again what it has done, because a step was moved to behind the place where it stands.


_INSIDE = "[/~."  # what follows the key of a step in the keys of what is done inside it


def refuse(main: Thread, completed: Collection[str]) -> None:
    """DefinitionChanged where a step that is still to come, of any thread, is among those that were completed."""
    for thread in main.walk():
        for step_id, key in _ahead(thread):
            if any(one.startswith(key) and one[len(key) : len(key) + 1] in ("", *_INSIDE) for one in completed):
                raise DefinitionChanged(
                    f"step {step_id!r}, which the run has done, stands behind the step where the run is now, and would "
                    "be done again: resume with the definition that the run was started with, or start a new run"
                )


def _ahead(thread: Thread) -> Iterator[tuple[str, str]]:
    """The steps behind those that a thread stands in, with the keys that they will have."""
    state = thread.cursor.state
    for level, frame in enumerate(state.frames):
        for place in range(frame.place + 1, len(frame.steps)):
            moved = state.with_frames(*state.frames[:level], frame._replace(place=place))
            yield frame.steps[place].id, thread.step_key(moved)
