"""What came of a step: the cursor is told, the state is written, the journal has both, together."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.engine import bookkeeping
from sidecar.engine.ending import RunEnds
from sidecar.engine.program import asks
from sidecar.engine.program.actions import Answer, Completed, Evaluate, Failed, FailedAround
from sidecar.engine.record import run_log
from sidecar.errors import ExpressionError, SidecarError, StepFailed, StoreError
from sidecar.model import run as kinds
from sidecar.model.steps import Working

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.engine.context import Surroundings
    from sidecar.engine.cursor import Cursor
    from sidecar.engine.evaluation import View
    from sidecar.engine.program.actions import Error, Scope, Settle
    from sidecar.engine.record.image import Image
    from sidecar.engine.record.ledger import Ledger
    from sidecar.engine.spaces import Path, Space
    from sidecar.engine.threads import Thread
    from sidecar.model.steps import StepBase
    from sidecar.state.reactive import Write


_LONGEST_SAID = 300


@dataclass(slots=True)
class Attempt:
    """Something that is tried; `error` where it failed."""

    error: Error | None = None


class Outcomes:
    """The books of one run."""

    def __init__(self, image: Image, ledger: Ledger, around: Surroundings) -> None:
        self.image = image
        self.ledger = ledger
        self._around = around

    @contextmanager
    def attempt(self, step: StepBase) -> Iterator[Attempt]:
        """What is raised in here is the step's error, whether anybody foresaw it or not: the run goes on from there.

        Not so the end of the run, and the loss of the journal: nothing in a workflow may catch these.
        """
        tried = Attempt()
        try:
            yield tried
        except Exception as error:
            cause = alone(error)
            if isinstance(cause, StoreError | RunEnds):
                raise cause from None
            if self.ledger.lost is not None:  # whatever followed from that
                raise self.ledger.lost from None
            if not isinstance(cause, SidecarError):
                self.keep_traceback(cause)
            tried.error = self._around.mask.masked_value(error_of(cause, step))

    def keep_traceback(self, error: Exception) -> None:
        """What nobody foresaw, for whoever mends it: people get one line."""
        run_log.keep_traceback(self._around.root, self._around.run_id, error, self._around.mask)

    def completed(self, thread: Thread, step: StepBase, key: str, outcome: list[Any]) -> None:
        """Its writes are done. The caller tells the cursor."""
        self.ledger.note(kinds.STEP_COMPLETED, thread=thread.key, **_told(thread, step, key), outcome=outcome)

    def failed(self, thread: Thread, step: StepBase, error: Error) -> None:
        """The current step failed: the cursor decides what becomes of it."""
        self._failed(thread, step, error, None)

    def failed_around(self, thread: Thread, level: int, error: Error) -> None:
        """A step failed that has the current one inside it."""
        self._failed(thread, thread.cursor.state.frames[level].step, error, level)

    def _failed(self, thread: Thread, step: StepBase, error: Error, around: int | None) -> None:
        error = typed(error)
        before = thread.cursor
        level = len(before.state.frames) - 1 if around is None else around
        key, path = thread.step_key(before.state.trimmed(level + 1)), thread.space(before.state.path(level))
        told_cursor = Failed(error) if around is None else FailedAround(level, error)
        after, asked = self._judged(thread, before.after(told_cursor))
        again = _tried_again(before, after)
        self._keep_failure(path, step, error, again=again, key=key)
        told = {**_told(thread, step, key), "error": error, "will_retry": again}
        outcome = ["failed", error] if around is None else ["failed_around", error, level]
        self.ledger.note(kinds.STEP_FAILED, thread=thread.key, **told, outcome=outcome)
        for each in asked:
            self.ledger.note(kinds.EVALUATED, **each)
        thread.error = error
        self.image.move(thread, after)

    def settle(self, thread: Thread, action: Settle) -> None:
        """Write what a failed step leaves behind."""
        state = thread.cursor.state
        assert state.failure is not None
        step, key = action.step, thread.step_key(state.trimmed(state.failure.level + 1))
        scope = thread.scope(action.scope)
        space = self.image.spaces[scope.path]
        view = space.view(scope.names)
        with self.attempt(step) as tried:
            writes: list[Write] = []
            if step.error_state_update is not None:
                writes += view.with_names(error=action.error, result=action.error).writes([step.error_state_update])
            update = step.state_update if isinstance(step, Working) else None
            if action.goes_on and step.has_fallback and update is not None:
                fallback = view.value(step.fallback_value)
                writes += view.with_names(result=fallback, applied_count=fallback).writes([update])
            self.write(space, scope.path, writes)
        if (told := tried.error) is not None:
            facts = {**_told(thread, step, key), "error": told, "will_retry": False}
            self.ledger.note(kinds.STEP_FAILED, thread=thread.key, **facts, outcome=["failed", told])
            thread.error = told
            self.image.move(thread, thread.cursor.after(Failed(told)))
            return
        self.ledger.note(kinds.ERROR_HANDLED, thread=thread.key, step=key, id=step.id, outcome=["completed"])
        self.image.move(thread, thread.cursor.after(Completed()))

    # --- steps whose tasks decide

    def tasks_begin(self, thread: Thread, step: StepBase) -> None:
        """A `parallel_foreach` begins, or goes on with what is left of it."""
        attempt = thread.cursor.state.top.failures + 1
        self.ledger.note(kinds.STEP_STARTED, **_told(thread, step, thread.step_key()), attempt=attempt)

    def tasks_over(self, thread: Thread, step: StepBase, before: Cursor, error: Error | None) -> None:
        """The tasks of the step that the thread stood at are over, well or not. The cursor knows already."""
        key, path = thread.step_key(before.state), thread.space(before.state.path(len(before.state.frames) - 1))
        if error is None:
            space = self.image.spaces[path]
            with self.attempt(step) as tried:
                self.write(space, path, bookkeeping.completed(space, step.id))
            self._tell_not_kept(tried, key)
            self.ledger.note(kinds.STEP_COMPLETED, **_told(thread, step, key))
            return
        error = typed(error)
        after, asked = self._judged(thread, thread.cursor)
        self.image.move(thread, after)
        again = _tried_again(before, after)
        self._keep_failure(path, step, error, again=again, key=key)
        self.ledger.note(kinds.STEP_FAILED, **_told(thread, step, key), error=error, will_retry=again)
        for each in asked:
            self.ledger.note(kinds.EVALUATED, **each)

    # --- the state

    def write(self, space: Space, path: Path, writes: list[Write]) -> None:
        """A transaction of a state; the event that is noted next is what it belongs to."""
        if writes:
            space.update(writes)
            self.ledger.wrote(path, [[write.path, write.value, write.operation] for write in writes])

    def view(self, thread: Thread, scope: Scope) -> View:
        """What an expression of a thread's step sees."""
        scope = thread.scope(scope)
        return self.image.spaces[scope.path].view(scope.names)

    def _judged(self, thread: Thread, cursor: Cursor) -> tuple[Cursor, list[dict[str, Any]]]:
        """The cursor when it has decided about a failure: whether the step is tried again belongs to its books."""
        asked = []
        while cursor.state.failure is not None and isinstance(action := cursor.action, Evaluate):
            with self.attempt(action.step) as tried:
                found = self.view(thread, action.scope).value(asks.value(action.step, action.field, {}))
                outcome: list[Any] = ["answer", found]
                told: Answer | Failed = Answer(found)
            if tried.error is not None:
                outcome, told = ["failed", tried.error], Failed(tried.error)
            asked.append({"thread": thread.key, "step": action.step.id, "field": action.field, "outcome": outcome})
            cursor = cursor.after(told)
        return cursor, asked

    def _keep_failure(self, path: Path, step: StepBase, error: Error, *, again: bool, key: str) -> None:
        space = self.image.spaces[path]
        with self.attempt(step) as tried:
            self.write(space, path, bookkeeping.failed(space, step.id, error, again=again))
        self._tell_not_kept(tried, key)

    def _tell_not_kept(self, tried: Attempt, key: str) -> None:
        """Books that cannot be kept change nothing about the step: a field computed from them may have failed."""
        if tried.error is not None:
            problem = tried.error["message"]
            self.ledger.note(kinds.WARNING, text=f"what became of step {key} is not in the state: {problem}")


def alone(error: Exception) -> Exception:
    """An error without the groups that the task groups on its way have put around it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def error_of(error: Exception, step: StepBase) -> Error:
    """What `error` is in expressions."""
    if isinstance(error, StepFailed):
        return typed({"step": step.id, **error.error})
    known: Error = {"message": str(error), "step": step.id, "type": type(error).__name__}
    if isinstance(error, ExpressionError):
        known |= {"kind": error.kind, "line": error.line, "column": error.column}
    if not isinstance(error, SidecarError):
        known |= {"message": unforeseen(error), "kind": "internal_error"}
    return typed(known)


def typed(error: Error) -> Error:
    """With a `type`, whoever made it: its kind where nothing better is known."""
    return {"type": error.get("kind") or "failed", **error}


def unforeseen(error: Exception) -> str:
    """One line for people about an error that is no word of ours."""
    said = " ".join(str(error).split())[:_LONGEST_SAID]
    return f"unexpected {type(error).__name__}{f': {said}' if said else ''} (run.log has the traceback)"


def _told(thread: Thread, step: StepBase, key: str) -> dict[str, Any]:
    return {"step": key, "id": step.id, "type": step.type, "task": thread.task_id}  # type: ignore[attr-defined]


def _tried_again(before: Cursor, after: Cursor) -> bool:
    """Whether the cursor went back to the beginning of a step that failed, the same or one around it."""
    if after.is_over or not after.state.frames or after.state.failure is not None:
        return False
    level = len(after.state.frames) - 1
    return level < len(before.state.frames) and after.state.top.failures > before.state.frames[level].failures
