"""Lets outside agents do the steps of a run: each asks for the next step, does it, and reports the result.

A run whose driver is an agent is loaded for each call, under its run lock: between two calls another process may have
changed it, and the journal says so. The tasks of a run that this process executes may have agents of their own: their
calls are done in that execution, and end with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio

from sidecar.catalog.workflows import Definition
from sidecar.engine import approval, handout
from sidecar.engine.boundary import RunEnds
from sidecar.engine.cursor.actions import Action, Boundary, Execute, Finished, Parallel
from sidecar.engine.ending import (
    clear_stale_signals,
    decide,
    decide_early,
    end_abandoned,
    end_run,
    end_unloadable,
    journal_start,
)
from sidecar.engine.execution import REQUEST, Execution, locked, refuse_second, watching
from sidecar.engine.handout import StepIds, StepReport
from sidecar.engine.owner import Owner
from sidecar.engine.parallel import open_batches, stands_at
from sidecar.engine.replay import load, pass_boundaries, prepare_resume
from sidecar.engine.run import Run, Thread
from sidecar.engine.run import task_id as id_of_task
from sidecar.engine.steps.agent import PROMPT_NAME, named_prompt
from sidecar.errors import InputError, StoreError
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.signals import run_lock
from sidecar.store.db import when_free
from sidecar.store.journal import OPEN, Handout, Steps

Json = dict[str, Any]

_LOCKED_JOURNAL_S = 10.0  # how long a call waits for a journal that is locked; the caller can try again
_WHICH_TASK = "the one that you are given with this prompt"  # one prompt serves all tasks of a step


def begin(owner: Owner, run_id: str, run: Run) -> None:
    """Journal the start of a run that an agent drives, with its first checkpoint. The caller has its run lock."""
    stored = owner.journal.run(run_id)
    with owner.database.transaction():
        details = {name: value for name, value in stored.details.items() if name != REQUEST}
        owner.journal.change(run_id, details=details, driver="agent")
        journal_start(owner, stored)
        owner.transformations.add(run_id, run.states.take_traces())
        owner.checkpoints.save(run_id, {**run.to_json(), "seq": owner.journal.last_seq(run_id)})


def resume(owner: Owner, run_id: str, feedback: str | None, *, approve: bool = False) -> None:
    """Resume an open run that no process executes, from its last boundary: from now on an agent drives it. Steps that
    were handed out are handed out anew. The caller has its run lock."""
    stored = owner.journal.run(run_id)
    approval.check(owner.journal, stored, feedback=feedback, approve=approve)
    refuse_second(owner.journal, owner.root, stored.workflow, stored.workspace, run_id)
    run_lock.keep_open(owner.root, run_id, workspace=stored.workspace, driver="agent")
    run = load(owner, stored)
    try:
        with owner.database.transaction():
            prepare_resume(owner, end_abandoned(owner, stored), run, feedback, approve=approve)
            begin(owner, run_id, run)
    finally:
        run.states.close()


class AgentDriven:
    """One run, as its agents call it. Calls on one run follow each other; calls on different runs do not wait."""

    def __init__(
        self, owner: Owner, run_id: str, on_event: Callable[[RunEvent], None], live: Execution | None = None
    ) -> None:
        """`live`: where this process executes the run itself, for the agents of its tasks."""
        self.definition: Definition | None = None  # kept here, it is not parsed again when the run is loaded
        self._owner = owner
        self._run_id = run_id
        self._on_event = on_event
        self._live = live
        self._loaded = live  # else as the last call left it
        self._turn = anyio.Lock()

    async def next_step(self, task_id: str | None = None) -> Json:
        """The step to do now: the same until it is reported. `{"step": null, …}` where the run or the task is over."""
        if self._live is not None and (over := self._over_in_live(task_id)) is not None:
            return over
        found = await self._call(lambda: self._next_step(task_id))
        return {"step": None, **self._ended()} if found is None else found

    async def step_complete(self, report: StepReport) -> Json:
        """A step was done by its agent, or failed there."""
        if self._live is None and self._owner.journal.run(self._run_id).status != "running":
            return not_handed_out(self._owner, self._run_id, report)
        found = await self._call(lambda: self._step_complete(report))
        return {"success": True, "step": None, **self._ended()} if found is None else found

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Execution | None]:
        """The run in memory, to read or write its state; None where it is over."""
        if self._live is not None:
            yield self._live
            return
        async with self._turn, locked(self._owner.root, self._run_id):
            yield self._load()

    def let_go(self) -> bool:
        """Release the memory: the journal has the run. False in the middle of a call, when nothing is released."""
        if self._turn.locked():
            return False
        self._forget()
        return True

    # --- one call

    async def _call(self, do: Callable[[], Awaitable[Json]]) -> Json | None:
        """Do something with the run in memory; None where the run has ended, before or by it."""
        if self._live is not None:
            return await self._live.call(do)
        async with self._turn, locked(self._owner.root, self._run_id) as lock:
            last_seq = self._owner.journal.last_seq(self._run_id)
            try:
                execution = self._load()
            except (StoreError, InputError):
                raise
            except Exception as error:  # no call could ever load it: it ends
                end_unloadable(self._owner, self._run_id, last_seq, error, self._on_event)
                return None
            if execution is None:
                return None
            found = await self._interpret(execution, lock, do)
            if execution.lost is not None:
                self._forget()
                raise execution.lost
            if execution.ending is None:
                execution.ledger.commit()
                await execution.ledger.caught_up()  # the caller gets only what the journal has
                return found
            await end_run(execution, execution.ending)
            self._forget()
            return None

    def _load(self) -> Execution | None:
        """The run as the journal has it now: what is in memory, unless another process wrote. None: it is over."""
        owner = self._owner
        stored = owner.journal.run(self._run_id)
        if stored.status != "running":
            self._forget()
            return None
        if stored.driver != "agent":
            self._forget()
            raise InputError(f"run {self._run_id} is not yours to drive: workflow_resume makes you its driver")
        last_seq = owner.journal.last_seq(self._run_id)
        if self._loaded is not None and self._loaded.ledger.seq == last_seq:
            return self._loaded
        self._forget()
        run = load(owner, stored)
        run.main.handed_out = True
        for thread in run.main.walk():
            if owner.handouts.held(stored.run_id, thread.task_id or "") is not None:
                pass_boundaries(thread)  # a step that an agent has was begun: the thread is at it, not before it
        # The agent has been at work since the last event.
        at = owner.journal.events(self._run_id, after=last_seq - 1)[-1].at
        run.counters.duration_s += max(owner.database.clock() - at, 0.0)
        self._loaded = Execution(owner, stored, run, self._emit)
        self._loaded.ledger.patience_s = _LOCKED_JOURNAL_S
        clear_stale_signals(self._loaded)
        return self._loaded

    def _emit(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._on_event(event)

    def _forget(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    async def _interpret(
        self, execution: Execution, lock: run_lock.RunLock, do: Callable[[], Awaitable[Json]]
    ) -> Json | None:
        execution.scope = anyio.CancelScope()
        async with watching(execution, lock):
            try:
                with execution.scope:
                    async with execution.services():
                        return await self._decided(execution, do)
            except RunEnds as ends:
                execution.set_ending(ends.ending)
            except StoreError as error:
                execution.lost = execution.lost or error
        return None

    @staticmethod
    async def _decided(execution: Execution, do: Callable[[], Awaitable[Json]]) -> Json | None:
        while True:
            try:
                found = await do()
                await execution.batches.quiet()  # what is done here is done before the call returns
                return found
            except RunEnds as ends:
                ending = await decide_early(execution, ends.ending)
                if ending is not None:
                    execution.set_ending(ending)
                    return None

    def _ended(self) -> Json:
        if self._live is None:
            stored = self._owner.journal.run(self._run_id)
            return {"status": stored.status, "reason": stored.reason or ""}
        ending = self._live.ending
        return {"status": ending.status if ending else "interrupted", "reason": ending.reason if ending else ""}

    def _over_in_live(self, task_id: str | None) -> Json | None:
        """None where an agent does the task. A step that the sidecar itself does is not handed out."""
        main = self._execution.run.main
        threads = [thread for thread in main.walk() if thread.task_id == task_id and not thread.reported]
        if any(thread.handed_out for thread in threads):
            return None
        if threads:
            what = f", and so is its task {task_id}" if task_id else "; a sub-agent of a task gives its task_id"
            raise InputError(f"run {self._run_id} is executed by the sidecar itself{what}")
        if self._has_event_of_task(task_id, kinds.TASK_STARTED):
            return {"step": None, "status": "completed", "reason": f"task {task_id} is over"}
        raise InputError(f"run {self._run_id} has no task {task_id!r}")

    def _has_event_of_task(self, task_id: str | None, *wanted: str) -> bool:
        events = self._owner.journal.events(self._run_id)
        return any(event.kind in wanted and event.data["task"] == task_id for event in events)

    @property
    def _execution(self) -> Execution:
        """The run in memory, during a call."""
        assert self._loaded is not None
        return self._loaded

    # --- a step is handed out

    async def _next_step(self, task_id: str | None) -> Json:
        self._execution.guard.stop_requested()  # RunEnds after an abort
        thread = self._thread(task_id)
        if thread is None:
            return {"step": None, "status": "completed", "reason": f"task {task_id} is done"}
        async with thread.lock:
            if self._is_held_back(thread):
                return {"step": None, "status": "stopped", "reason": f"the run is to stop; {task_id} is done later"}
            held = self._owner.handouts.held(self._run_id, thread.task_id or "")
            if held is not None and held.key == self._key_at(thread):
                self._check_stop(thread)
                return {"step": await self._hand_out(thread, held.key, await self._with_feedback(held))}
            if held is not None:
                await self._take_back(thread.task_id)
            return await self._walk(thread)

    def _thread(self, task_id: str | None) -> Thread | None:
        """The thread of a task; None where it is over. InputError for a task that never was."""
        main, batches = self._execution.run.main, self._execution.batches
        if not task_id:
            return main
        for parent in main.walk():
            for action in open_batches(parent):
                for index in action.todo:
                    if id_of_task(parent, action, index) == task_id:
                        # A task that is tried again begins from its first step, as a thread of its own.
                        return batches.create(parent, action, index, handed_out=True)
        if self._has_event_of_task(task_id, kinds.TASK_STARTED, kinds.TASK_ENDED):
            return None
        raise InputError(f"run {self._run_id} has no task {task_id!r}; the step parallel_tasks lists them")

    async def _walk(self, thread: Thread) -> Json:
        """Execute what is not for an agent; the first step that is, or how the thread ended."""
        execution = self._execution
        interpreter, steps = execution.interpreter, execution.interpreter.steps
        while True:
            action = await interpreter.walk(thread)
            if thread.cursor.is_over:
                if thread.parent is not None:
                    return (
                        _task_result(action) if execution.batches.is_running(thread) else await self._end_task(thread)
                    )
                ending = await decide(execution, action)
                if ending is not None:
                    raise RunEnds(ending)
                thread = execution.run.main  # the workflow starts again
                continue
            assert isinstance(action, Execute | Parallel)
            key = _key(thread, action)
            steps.use_feedback(key)
            with steps.attempt(action.step) as tried:  # an error in a template fails the step
                if isinstance(action, Execute):
                    step = self._describe(thread, action, key)
                else:
                    step = self._describe_tasks(thread, action, key)
            if tried.error is not None:
                steps.fail(thread, action.step, tried.error)
                continue
            if isinstance(action, Execute):
                begun = await steps.begin(thread, action.step, key)
                assert begun == step["attempt"]
            step = handout.with_additions(step, execution.run.additions.get(key, ()))
            return {"step": await self._hand_out(thread, key, step)}

    def _describe(self, thread: Thread, action: Execute, key: str) -> Json:
        steps = self._execution.interpreter.steps
        view, attempt = steps.view(thread, action.scope), steps.ledger.attempts(key) + 1
        prompts = partial(named_prompt, steps.context(thread, view, key, attempt))
        return handout.hand_out(action.step, view, StepIds(self._run_id, key, attempt, thread.task_id), prompts)

    def _describe_tasks(self, thread: Thread, action: Parallel, key: str) -> Json:
        execution, steps, batches = self._execution, self._execution.interpreter.steps, self._execution.batches
        batches.record_begin(thread, action)
        children = [batches.create(thread, action, index, handed_out=True) for index in action.todo]
        description = execution.run.task_definition(children[0]).description
        given = {"workflow_id": self._run_id, "task_id": _WHICH_TASK}
        if description.strip():
            given["description"] = description
        return handout.hand_out_tasks(
            action.step,
            steps.view(thread, action.scope),
            # No attempt is journalled: another execution takes it back.
            StepIds(self._run_id, key, execution.ledger.start, thread.task_id),
            tasks={child.task_id or "": child.names for child in children},
            max_parallel=action.max_parallel,
            sub_agent_prompt=named_prompt(steps.task_context(thread), PROMPT_NAME, given, strict=False),
            description=description,
        )

    async def _with_feedback(self, held: Handout) -> Any:
        """A step that is handed out already, with the feedback since; the same step in all else."""
        texts = list(self._execution.run.pending_feedback)
        if not texts:
            return held.step
        self._execution.interpreter.steps.use_feedback(held.key)
        await self._take_back(held.task_id)
        return handout.with_additions(held.step, texts)

    async def _hand_out(self, thread: Thread, key: str, step: Any) -> Any:
        """Journal that the step is handed out; all that led to it is journalled before."""
        owner, ledger = self._owner, self._execution.ledger
        ledger.commit(durable=True)
        await ledger.caught_up()
        journalled = owner.handouts.hand_out
        return (await when_free(owner.database, lambda: journalled(self._run_id, thread.task_id or "", key, step))).step

    async def _take_back(self, task_id: str | None) -> None:
        """Journal that a step is no longer handed out, after all that was done with it."""
        await self._execution.ledger.caught_up()
        owner = self._owner
        await when_free(owner.database, lambda: owner.handouts.take_back(self._run_id, task_id or ""))

    # --- a step is reported

    async def _step_complete(self, report: StepReport) -> Json:
        held = next(
            (
                one
                for one in self._owner.handouts.all_held(self._run_id)
                if one.key == report.step_id and report.task_id in (None, one.task_id)
            ),
            None,
        )
        thread = self._thread(held.task_id or None) if held is not None else None
        if held is None or thread is None or report.attempt not in (None, held.step.get("attempt")):
            return not_handed_out(self._owner, self._run_id, report)
        async with thread.lock:
            action = thread.cursor.action
            if isinstance(action, Parallel) and self._key_at(thread) == held.key:
                await self._report_tasks(thread, action, report)
            elif isinstance(action, Execute) and thread.step_key() == held.key:
                await self._report_step(thread, action, held, report)
            else:
                await self._take_back(held.task_id)
                return {"success": True, "message": "its tasks were all done already"}
        return {"success": True}

    async def _report_step(self, thread: Thread, action: Execute, held: Handout, report: StepReport) -> None:
        steps, result = self._execution.interpreter.steps, report.result
        attempt = self._execution.ledger.attempts(held.key)
        if report.status == "failed":
            answer = result if isinstance(result, str) and result.strip() else "the agent says that it failed"
            error = {"message": report.error or answer, "step": action.step.id}
            steps.fail(thread, action.step, error, attempt=attempt)
        else:
            view = steps.view(thread, action.scope)
            value = handout.read_result(action.step, result, definition=held.step["definition"], view=view)
            steps.complete(thread, action, value, attempt=attempt, has_result=result is not None)
        await self._take_back(held.task_id)
        if thread.parent is not None and not self._execution.batches.is_running(thread):
            # Up to the next step for its agent: the agent that reports the last one may not ask again.
            await self._execution.interpreter.walk(thread)
            if thread.cursor.is_over:
                await self._end_task(thread)

    async def _report_tasks(self, thread: Thread, action: Parallel, report: StepReport) -> None:
        """All tasks of a step are reported as failed; InputError where they are reported as done, and are not."""
        places = [(action.batch, index) for index in action.todo]
        open_tasks = [thread.children[place] for place in places if place in thread.children]
        if report.status == "failed":
            text = self._execution.mask.masked_text(report.error or "")
            for child in open_tasks:
                await self._take_back(child.task_id)
                self._execution.batches.end_task(child, {"message": text or "its agent says that it failed"})
            await self._take_back(thread.task_id)
            return
        self._check_stop(thread)
        names = ", ".join(child.task_id or "" for child in open_tasks)
        raise InputError(
            f"these tasks are not done yet: {names}; have a sub-agent call workflow_get_next_step with the task_id of "
            "each until it gets no step, or report the step as failed"
        )

    async def _end_task(self, thread: Thread) -> Json:
        error = await self._execution.interpreter.finish_task(thread)
        self._execution.batches.end_task(thread, error)
        self._check_stop(thread)
        status = "failed" if error else "completed"
        return {"step": None, "status": status, "reason": str(error["message"]) if error else "the task is done"}

    def _key_at(self, thread: Thread) -> str | None:
        """The key of the step at which the thread waits for an agent."""
        action = thread.cursor.action
        if not self._execution.interpreter.waits_outside(thread, action):
            return None
        assert isinstance(action, Execute | Parallel)
        return _key(thread, action)

    # --- a stop, while agents have tasks in hand

    def _is_held_back(self, thread: Thread) -> bool:
        """Whether a task is not to begin, because a stop is requested. RunEnds where no task is under way."""
        if not self._execution.run.main.handed_out or thread.parent is None or not _is_fresh(thread):
            return False
        self._check_stop(thread)
        return self._execution.guard.stop_requested()

    def _check_stop(self, thread: Thread) -> None:
        """RunEnds where a stop is requested, the run is at the tasks of one step, and none of them is under way."""
        main, guard = self._execution.run.main, self._execution.guard
        action = main.cursor.action
        waits = main.handed_out and isinstance(action, Parallel) and action.stoppable
        if not waits or main not in (thread, thread.parent) or not guard.stop_requested():
            return
        if all(each is main or _is_fresh(each) or each.cursor.is_over for each in main.walk()):
            raise guard.stopped()


def not_handed_out(owner: Owner, run_id: str, report: StepReport) -> Json:
    """The reply to a report of a step that is not handed out. It was reported before: that is no error. InputError: it
    was taken back, or was never handed out."""
    last = Steps(owner.database).last(run_id, report.step_id)
    if last is not None and last.status in ("completed", "failed") and report.attempt in (None, last.attempt):
        return {"success": True, "message": f"nothing to do: {report.step_id} was reported before, as {last.status}"}
    if last is not None and report.attempt is not None and (report.attempt, "begun") != (last.attempt, last.status):
        raise InputError(
            f"attempt {report.attempt} at step {report.step_id!r} was taken back: somebody else went on with the run. "
            "This report has changed nothing; workflow_get_next_step says what is to be done now"
        )
    stored = owner.journal.run(run_id)
    if stored.driver == "server" and stored.status in OPEN:
        raise InputError(f"run {run_id} is driven by sidecar now, not by you")
    if stored.status != "running":
        raise InputError(f"run {run_id} is {stored.status}: {stored.reason or 'it takes no more steps'}")
    raise InputError(f"step {report.step_id!r} is not handed out; workflow_get_next_step says which one is")


def _key(thread: Thread, action: Execute | Parallel) -> str:
    """The key of the step; tasks that only the end of the run waits for have one of their own."""
    if isinstance(action, Execute) or stands_at(thread.cursor, action.batch):
        return thread.step_key()
    word = f"{action.step.id}#{action.batch}~rest"
    return f"{thread.key}/{word}" if thread.key else word


def _task_result(action: Action) -> Json:
    """For the agent of a task that has no more steps for it."""
    if isinstance(action, Finished) and action.status == "completed":
        return {"step": None, "status": "completed", "reason": action.message or "the task is done"}
    reason = action.message if isinstance(action, Finished) else "its limit of iterations is reached"
    return {"step": None, "status": "failed", "reason": reason}


def _is_fresh(thread: Thread) -> bool:
    """Whether nothing of a task was begun."""
    state = thread.cursor.state
    first = isinstance(thread.cursor.action, Boundary) and len(state.frames) == 1 and state.frames[-1].place == 0
    return first and not state.transitions and not state.iterations
