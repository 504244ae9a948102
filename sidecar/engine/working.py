"""The steps that do something: begun, done, and completed or failed, here or by an agent outside."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine import bookkeeping
from sidecar.engine.context import AnswerNeeded, Context
from sidecar.engine.ending import Ending, RunEnds
from sidecar.engine.needs import has_own_agent, is_for_agent
from sidecar.engine.program.actions import Completed
from sidecar.engine.steps import HANDLERS
from sidecar.errors import StepFailed
from sidecar.model import run as kinds
from sidecar.model.steps import ApplyHints, StateUpdate, UserInput, UserMessage, Working
from sidecar.state.values import DEEPEST, too_deep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sidecar.engine.boundary import Gate
    from sidecar.engine.context import Surroundings
    from sidecar.engine.evaluation import View
    from sidecar.engine.outcomes import Outcomes
    from sidecar.engine.processes import Processes
    from sidecar.engine.program.actions import Error, Run
    from sidecar.engine.threads import Thread
    from sidecar.model.steps import StepBase


class Work:
    """Everything that a run does to the world."""

    def __init__(
        self,
        outcomes: Outcomes,
        around: Surroundings,
        *,
        gate: Gate,
        processes: Processes,
        tell: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.around = around
        self.submitted: dict[str, Any] | None = None  # a stage that waits for approval: its step does not complete
        self._outcomes = outcomes
        self._image = outcomes.image
        self._ledger = outcomes.ledger
        self._gate = gate
        self._processes = processes
        self._tell = tell
        self._redirectable: dict[str, anyio.CancelScope] = {}  # what is being done now, by key

    # --- done here

    async def run(self, thread: Thread, action: Run) -> None:
        """Do a step."""
        step = action.step
        if isinstance(step, StateUpdate):
            self._at_once(thread, action, step.writes)
        elif isinstance(step, UserMessage):
            self._at_once(thread, action, (), message=step.message)
        else:
            await self._work(thread, action)

    def _at_once(self, thread: Thread, action: Run, updates: Sequence[Any], message: str | None = None) -> None:
        """A step without an effect that could be repeated: journalled with what follows."""
        step, key = action.step, thread.step_key()
        scope = thread.scope(action.scope)
        space = self._image.spaces[scope.path]
        with self._outcomes.attempt(step) as tried:
            view = space.view(scope.names)
            if message is not None:
                self._ledger.note(kinds.MESSAGE, text=view.text(message), step=key, task=thread.task_id)
            writes = [*view.writes(updates), *bookkeeping.completed(space, step.id)]
            self._outcomes.write(space, scope.path, writes)
        if tried.error is not None:
            self._outcomes.failed(thread, step, tried.error)
            return
        self._outcomes.completed(thread, step, key, ["completed"])
        thread.cursor = thread.cursor.after(Completed())

    async def _work(self, thread: Thread, action: Run) -> None:
        """A step that reaches out into the world."""
        step, key = action.step, thread.step_key()
        while True:
            if is_for_agent(step, "server") or has_own_agent(step):
                self.give_feedback(key)
            attempt = await self.begin(thread, step, key)
            result: Any = None
            with self.redirectable(key) as scope, self._outcomes.attempt(step) as tried:
                try:
                    result = await HANDLERS[type(step)](step, self.context(thread, action, key, attempt))
                except AnswerNeeded as needed:
                    raise self._asks(key, thread, needed.question) from None
            error = tried.error
            self.keep_gate(key)
            if not scope.cancelled_caught:
                break
            self._ledger.fail(key, attempt, {"message": "redirected"})
        if error is None:
            self.complete(thread, action, key, attempt, result, owe=True)
        elif error.get("kind") == "budget" and self._gate.cost_left_usd() == 0:  # not its own budget, but the run's
            self._ledger.fail(key, attempt, error)
            self._gate.keep_limits(step)
        else:
            self.fail(thread, step, key, attempt, error)

    def keep_gate(self, key: str) -> None:
        """RunEnds where this step has submitted a stage: what its agent said afterwards does not count."""
        if self.submitted is not None and self.submitted["step"] == key:
            raise RunEnds(Ending("paused", f"{self.submitted['stage']} waits for approval", waits=self.submitted))

    def _asks(self, key: str, thread: Thread, question: dict[str, Any]) -> RunEnds:
        """The run pauses for an answer."""
        waits = {**question, "step": key}
        self._ledger.note(kinds.QUESTION, **waits, task=thread.task_id)
        return RunEnds(Ending("paused", f"waits for an answer: {question['prompt']}", waits=waits))

    # --- done here or outside

    async def begin(self, thread: Thread, step: StepBase, key: str) -> int:
        """A step is about to be done; its attempt."""
        told = {"step": key, "id": step.id, "type": step.type, "task": thread.task_id}  # type: ignore[attr-defined]
        if step.description:
            told["description"] = step.description
        return await self._ledger.begin(key, **told)

    def complete(
        self,
        thread: Thread,
        action: Run,
        key: str,
        attempt: int,
        result: Any,
        *,
        writes_result: bool = True,
        owe: bool = False,
    ) -> None:
        """A step was done: its result goes into the state, and both into the journal, together.

        `writes_result` is False where an agent outside gave none: it may have written the state itself. `owe`: as
        `Ledger.complete` says.
        """
        step = action.step
        scope = thread.scope(action.scope)
        space = self._image.spaces[scope.path]
        names = {"result": result}
        if isinstance(step, ApplyHints) and isinstance(result, dict):
            names["applied_count"] = result.get("applied_count")
        update = step.state_update if isinstance(step, Working) else None
        if update is not None and not writes_result and not update.has_value:
            update = None
        with self._outcomes.attempt(step) as tried:
            if too_deep(result):
                raise StepFailed(f"the result is nested more than {DEEPEST} levels deep", kind="output")
            writes = space.view(scope.names).with_names(**names).writes([update] if update else [])
            self._outcomes.write(space, scope.path, [*writes, *bookkeeping.completed(space, step.id)])
        if tried.error is not None:
            self.fail(thread, step, key, attempt, tried.error)
            return
        self._outcomes.completed(thread, step, key, ["completed"])
        if isinstance(step, UserInput):
            self._ledger.note(kinds.ANSWERED, step=key, value=result, task=thread.task_id)
        self._ledger.complete(key, attempt, result, owe=owe)
        self._image.settled(key)
        thread.cursor = thread.cursor.after(Completed())

    def fail(self, thread: Thread, step: StepBase, key: str, attempt: int, error: Error) -> None:
        """A step failed: the cursor decides what becomes of it."""
        error = self.around.mask.masked_value(error)  # an agent outside may have worded it
        self._outcomes.failed(thread, step, error)
        self._ledger.fail(key, attempt, error)

    # --- steering

    @contextmanager
    def redirectable(self, key: str) -> Iterator[anyio.CancelScope]:
        """What is done in here can be begun again with a text added: then the scope was cancelled."""
        with anyio.CancelScope() as scope:
            self._redirectable[key] = scope
            try:
                yield scope
            finally:
                self._redirectable.pop(key, None)

    def redirect(self, text: str, name: str | None = None) -> list[str]:
        """Have what agents do now done again with a text added: the steps that are. `name`: the text's, by which it is
        known when it comes again after a crash."""
        text = self.around.mask.masked_text(text)
        keys = sorted(self._processes.steps() & set(self._redirectable))
        for key in keys:
            self._image.redirected(key, text, name)
            self._ledger.note(kinds.REDIRECTED, step=key, text=text, name=name)
        self._ledger.commit(durable=True)
        for key in keys:
            self._processes.request_end("redirect", key)
            self._redirectable[key].cancel()
        return keys

    def give_feedback(self, key: str) -> None:
        """What was said at a resume goes to the agent that gets the next prompt, and to no other."""
        for text in list(self._image.unheard):
            self._image.heard(key, text)
            self._ledger.note(kinds.FEEDBACK, step=key, text=text)

    # --- what a step may use

    def context(self, thread: Thread, action: Run, key: str, attempt: int) -> Context:
        """For one attempt at a step."""
        return self._context_of(thread, self._outcomes.view(thread, action.scope), key, attempt)

    def task_context(self, thread: Thread) -> Context:
        """For the agent that does a whole task."""
        view = self._image.spaces[thread.path].view(thread.names)
        return self._context_of(thread, view, thread.key, 1)

    def _context_of(self, thread: Thread, view: View, key: str, attempt: int) -> Context:
        processes, task_id = self._processes, thread.task_id
        return Context(
            around=self.around,
            view=view,
            key=key,
            attempt=attempt,
            task_id=task_id,
            additions=tuple(self._image.additions.get(key, ())),
            cost_left_usd=self._gate.cost_left_usd(),
            start=lambda launch, name: processes.start(launch, name, key, task_id),
            log_path=processes.log_path,
            tell=lambda kind, data: self._tell(kind, {"step": key, "task": task_id, **data}),
            spend=lambda cost, tokens: processes.spend(key, cost, tokens),
        )
