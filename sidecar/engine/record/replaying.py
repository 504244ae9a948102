"""A run told again: what the journal has since a checkpoint brings it to where it stood.

The cursor is pure: told the same outcomes, it stands in the same place. So nothing but the outcome of each step has to
be written while a run goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.catalog import imports
from sidecar.engine import aftermath
from sidecar.engine.program.actions import Answer, Boundary, Completed, Delay, Failed, FailedAround, Parallel, Passed
from sidecar.model import run as kinds
from sidecar.state.reactive import Write

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.engine.program.actions import Outcome
    from sidecar.engine.record.image import Image
    from sidecar.engine.threads import Thread
    from sidecar.store.journal import Event

_BETWEEN_STARTS = frozenset({kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.RUN_ENDED})


def replay(image: Image, events: Iterable[Event], since: float) -> None:
    """Everything that came after the checkpoint, which was written at `since`."""
    threads = {thread.key: thread for thread in image.main.walk_all()}
    for event in events:
        for path, writes in event.writes:
            changes = [Write(tuple(to), value, operation) for to, value, operation in writes]
            image.spaces[tuple(path)].update(changes)
        _replay_one(image, event, threads)
        if event.kind not in _BETWEEN_STARTS:  # nobody worked on the run before these
            image.counters.duration_s += max(event.at - since, 0.0)
        since = event.at


def _replay_one(image: Image, event: Event, threads: dict[str, Thread]) -> None:
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
        _know_spares(threads, child.parent)
    elif event.kind == kinds.FAILURE_STEPS and data["thread"] in threads:
        of = threads[data["thread"]]
        aftermath.begin(image.spaces, of, data["handler"], tuple(data["path"]), data["names"])
        _know_spares(threads, of)
    elif event.kind == kinds.AGENT_STARTED:
        image.counters.processes += 1
    elif event.kind == kinds.USAGE:
        image.counters.cost_usd += data.get("cost_usd") or 0.0
        image.counters.tokens += data.get("tokens") or 0
    elif event.kind == kinds.REDIRECTED:
        image.redirected(data["step"], data["text"], data.get("name"))
    elif event.kind == kinds.FEEDBACK:
        image.heard(data["step"], data["text"])
    thread = threads.get(data["thread"]) if "outcome" in data else None
    if thread is not None:
        if data["outcome"][0] != "failed_around":  # that may come before a boundary, which was not passed then
            pass_boundaries(thread)
        thread.error = data.get("error", thread.error)
        image.move(thread, thread.cursor.after(_outcome(image, thread, data["outcome"])))
        _know_spares(threads, thread)


def _know_spares(threads: dict[str, Thread], thread: Thread | None) -> None:
    """What is journalled next may be theirs."""
    if thread is not None:
        threads.update({spare.key: spare for spare in [*thread.spares.values(), *thread.left]})


def _outcome(image: Image, thread: Thread, told: list[Any]) -> Outcome:
    word, *rest = told
    if word == "answer":
        return Answer(rest[0])
    if word == "completed":
        return Completed()
    if word == "left":
        image.left(thread)
        return Completed()
    if word == "failed":
        return Failed(rest[0])
    if word == "failed_around":
        return FailedAround(rest[1], rest[0])
    assert word == "included"
    record, inputs, name, *fields = rest  # no fields: of a run that began before these could be given
    space = image.spaces[thread.here]
    definition = imports.restore(record) if record else space.definition.components[name]
    return image.include(thread, definition, inputs, *fields)


def pass_boundaries(thread: Thread) -> None:
    """Past what is never journalled: something came after it, so it was passed."""
    while isinstance(thread.cursor.action, Boundary | Delay):
        waited = isinstance(thread.cursor.action, Delay)
        thread.cursor = thread.cursor.after(Completed() if waited else Passed())


def _batches(thread: Thread) -> list[Parallel]:
    action = thread.cursor.action
    return [*([action] if isinstance(action, Parallel) else []), *thread.cursor.background]
