"""A run that an agent outside drives: it asks for the next step, does it, and says what came of it.

Between two calls nobody holds the run: another process may have changed it meanwhile, which the journal tells.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine import approval, execution, handout
from sidecar.engine.boundary import RunEnds
from sidecar.engine.cursor.actions import Boundary, Execute, Finished, Parallel
from sidecar.engine.ending import clear_stale_signals, decide, decide_early, end_run, end_unloadable, previous_status
from sidecar.engine.execution import REQUEST, Execution, locked, prepare_resume, watching
from sidecar.engine.handout import read_result
from sidecar.engine.parallel import open_batches, stands_at
from sidecar.engine.replay import load, pass_boundaries
from sidecar.engine.run import task_id as id_of_task
from sidecar.engine.steps.agent import PROMPT_NAME, named_prompt
from sidecar.errors import InputError, StoreError
from sidecar.model import events as kinds
from sidecar.signals import liveness
from sidecar.store.db import when_free
from sidecar.store.journal import OPEN, Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.boundary import Ending
    from sidecar.engine.handout import Report
    from sidecar.engine.owner import Owner
    from sidecar.engine.run import Run, Thread
    from sidecar.model.events import RunEvent

    Told = dict[str, Any]
    from sidecar.engine.cursor.actions import Action
    from sidecar.engine.cursor.position import Error
    from sidecar.engine.execution import Execution
    from sidecar.store.journal import Handout


_PATIENCE_S = 10.0  # with a locked journal: the caller hears of it, and can try again


class AgentDriven:
    """One run as its caller sees it. Calls on one run follow each other; calls on different runs do not wait."""

    def __init__(self, owner: Owner, run_id: str, hear: Callable[[RunEvent], None]) -> None:
        self._owner = owner
        self._run_id = run_id
        self._hear = hear
        self.definition: Definition | None = None  # held here, it is not read again when the run is loaded
        self._opened: Execution | None = None
        self._turn = anyio.Lock()

    async def next_step(self, task_id: str | None = None) -> Told:
        """The step that is to be done now: the same until it is done. At the end `{"step": null, status, reason}`."""
        told = await self._during(lambda hands: hands.next_step(task_id))
        return self._over() if told is None else told

    async def step_complete(self, report: Report) -> Told:
        """A step was done outside, or failed there."""
        if self._owner.journal.run(self._run_id).status != "running":
            return refused(self._owner, self._run_id, report)
        told = await self._during(lambda hands: hands.step_complete(report))
        return {"success": True, **self._over()} if told is None else told

    @asynccontextmanager
    async def held(self) -> AsyncIterator[Execution | None]:
        """The run for a moment, for whoever reads or writes its state; None where it is over."""
        async with self._turn, locked(self._owner.root, self._run_id):
            yield self._current()

    async def end(self, opened: Execution, ending: Ending) -> None:
        """The caller ends it."""
        await end_run(opened, ending)

    def let_go(self) -> bool:
        """Close what is open: the journal has all of it. False in the middle of a call, when nothing is closed."""
        if self._turn.locked():
            return False
        self._forget()
        return True

    # --- inside

    async def _during(self, do: Callable[[Hands], Awaitable[Told]]) -> Told | None:
        """Something with the run in hand; None where the run is over, before or by it."""
        async with self._turn, locked(self._owner.root, self._run_id) as lock:
            last = self._owner.journal.last_seq(self._run_id)
            try:
                opened = self._current()
            except (StoreError, InputError):
                raise
            except Exception as error:  # no call could ever have it: this is its end
                end_unloadable(self._owner, self._run_id, last, error, self._hear)
                return None
            if opened is None:
                return None
            told = await self._turned(opened, lock, do)
            if opened.lost is not None:
                self._forget()
                raise opened.lost
            if opened.ending is None:
                opened.ledger.commit()
                await opened.ledger.caught_up()  # the caller hears only what the journal has
                return told
            await end_run(opened, opened.ending)
            self._forget()
            return None

    async def _turned(
        self, opened: Execution, lock: liveness.RunLock, do: Callable[[Hands], Awaitable[Told]]
    ) -> Told | None:
        told: Told | None = None
        opened.scope = anyio.CancelScope()
        async with watching(opened, lock):
            try:
                with opened.scope:
                    told = await self._inside(opened, do)
            except RunEnds as ends:
                opened.set_ending(ends.ending)
            except StoreError as error:
                opened.lost = opened.lost or error
        return told

    async def _inside(self, opened: Execution, do: Callable[[Hands], Awaitable[Told]]) -> Told | None:
        async with opened.services():
            while True:
                try:
                    told = await do(Hands(opened))
                    await opened.batches.quiet()  # what is done here is done before the call returns
                except RunEnds as ends:
                    ending = await decide_early(opened, ends.ending)
                    if ending is None:
                        continue
                    opened.set_ending(ending)
                    return None
                return told

    def _current(self) -> Execution | None:
        """The run as the journal has it now; what is in memory is used where nobody else wrote meanwhile."""
        owner = self._owner
        run = owner.journal.run(self._run_id)
        if run.status != "running":
            self._forget()
            return None
        if run.driver != "agent":
            self._forget()
            raise InputError(f"run {self._run_id} is not yours to drive: workflow_resume makes you its driver")
        last = owner.journal.last_seq(self._run_id)
        if self._opened is not None and self._opened.ledger.seq == last:
            return self._opened
        self._forget()
        image = load(owner, run)
        image.main.handed_out = True
        for thread in image.main.walk():
            _to_handed_step(owner, run.run_id, thread)
        # Its agent has been at work since the last that the journal knows of.
        at = owner.journal.events(self._run_id, after=last - 1)[-1].at
        image.counters.duration_s += max(owner.database.clock() - at, 0.0)
        self._opened = Execution(owner, run, image, self._hear)
        self._opened.ledger.patience_s = _PATIENCE_S
        clear_stale_signals(self._opened)
        return self._opened

    def _forget(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _over(self) -> Told:
        run = self._owner.journal.run(self._run_id)
        return {"step": None, "status": run.status, "reason": run.reason or ""}


def _to_handed_step(owner: Owner, run_id: str, thread: Thread) -> None:
    """A step that is in an agent's hands was begun: the thread stands at it, not before it."""
    if owner.handouts.held(run_id, thread.task_id or "") is not None:
        pass_boundaries(thread)


def begin(owner: Owner, run_id: str, image: Run) -> None:
    """The start of a run that an agent drives: journalled, with its first checkpoint. The caller has its lock."""
    run = owner.journal.run(run_id)
    with owner.database.transaction():
        details = {name: value for name, value in run.details.items() if name != REQUEST}
        owner.journal.change(run_id, details=details, driver="agent")
        owner.journal.begin(run_id, {"workflow": run.workflow, "previous_status": previous_status(owner.journal, run)})
        owner.transformations.add(run_id, image.states.take_traces())
        owner.checkpoints.save(run_id, {**image.to_json(), "seq": owner.journal.last_seq(run_id)})


def resume(owner: Owner, run_id: str, feedback: str | None, *, approve: bool = False) -> None:
    """Go on with an open run that nobody executes, from its last boundary: from now on an agent drives it. What was
    handed out is handed out anew. The caller has its lock."""
    run = owner.journal.run(run_id)
    approval.check(owner.journal, run, feedback=feedback, approve=approve)
    execution.refuse_second(owner.journal, owner.root, run.workflow, run.workspace, run_id)
    liveness.keep_open(owner.root, run_id, workspace=run.workspace, driver="agent")
    if feedback is not None:
        feedback = owner.mask_of(run_id).masked_text(feedback)
    image = load(owner, run)
    try:
        with owner.database.transaction():
            for handout in owner.handouts.all_held(run_id):
                owner.handouts.take_back(run_id, handout.task_id)
            prepare_resume(owner, run, image, feedback, approve=approve)
            if run.status == "running":
                owner.journal.end(run_id, "interrupted", reason="its owner died")
            begin(owner, run_id, image)
    finally:
        image.states.close()


# A run that this process executes, as the agents of its tasks see it: they ask for steps, and say what came of them.
#
# What they ask for is done on the run that is open here, not on a copy, and ends with it.
#


class LiveRun:
    """An open run, while its loop turns."""

    def __init__(self, opened: Execution) -> None:
        self.opened = opened
        self._run_id = opened.run.run_id

    async def next_step(self, task_id: str | None = None) -> Told:
        """The step of a task that is to be done now: the same until it is done."""
        over = self._over_already(task_id)
        if over is not None:
            return over
        told = await self._inside(lambda hands: hands.next_step(task_id))
        return {"step": None, **self._ends()} if told is None else told

    async def step_complete(self, report: Report) -> Told:
        """A step of a task was done by its agent, or failed there."""
        told = await self._inside(lambda hands: hands.step_complete(report))
        return {"success": True, **self._ends()} if told is None else told

    def _over_already(self, task_id: str | None) -> Told | None:
        """None where the task is in the hands of an agent. What the sidecar does itself is handed out to nobody."""
        threads = self.opened.image.main.walk()
        known = [thread for thread in threads if thread.task_id == task_id and not thread.reported]
        if any(thread.handed_out for thread in known):
            return None
        if known:
            what = f", and so is its task {task_id}" if task_id else "; a sub-agent of a task gives its task_id"
            raise InputError(f"run {self._run_id} is executed by the sidecar itself{what}")
        for event in self.opened.owner.journal.events(self._run_id):
            if event.kind == kinds.TASK_STARTED and event.data["task"] == task_id:
                return {"step": None, "status": "completed", "reason": f"task {task_id} is over"}
        raise InputError(f"run {self._run_id} has no task {task_id!r}")

    async def _inside(self, do: Callable[[Hands], Awaitable[Told]]) -> Told | None:
        """In the scope of the run: what is begun for a caller ends with the run, and not with the caller. None where
        the run ended before it was done."""
        opened, done = self.opened, anyio.Event()
        if opened.batches.group is None:  # it is over already, or has not quite begun
            return None
        told: list[Told] = []
        failure: list[Exception] = []

        async def perform() -> None:
            try:
                told.append(await do(Hands(opened)))
            except RunEnds as ends:
                opened.end_now(ends.ending)
            except StoreError as lost:
                opened.lose_journal(lost)
                failure.append(lost)
            except Exception as error:  # the caller's, not the run's
                failure.append(error)
            finally:
                done.set()

        opened.batches.group.start_soon(perform)
        await done.wait()
        if failure:
            raise failure[0]
        return told[0] if told else None

    def _ends(self) -> Told:
        ending = self.opened.ending
        return {"status": ending.status if ending else "interrupted", "reason": ending.reason if ending else ""}


# What agents outside have in hand of an open run: each thread's step, given out, and taken back when it is reported.
#
# For a run that an agent drives, and for the tasks of any run that an agent of their own does.
#


_WHICH_TASK = "the one that you are given with this prompt"  # one prompt serves all tasks of a step


class Hands:
    """The steps of one open run, for those who ask for them. RunEnds where the run ends with what was asked."""

    def __init__(self, opened: Execution) -> None:
        self._opened = opened
        self._owner = opened.owner
        self._run_id = opened.run.run_id
        self._main = opened.image.main
        self._interpreter = opened.interpreter
        self._batches = opened.batches

    async def next_step(self, task_id: str | None = None) -> dict[str, Any]:
        """The step that is to be done now: the same until it is done; `{"step": null, …}` where a task is over."""
        self._interpreter.gate.check("abort-only")
        thread = self.thread(task_id)
        if thread is None:
            return {"step": None, "status": "completed", "reason": f"task {task_id} is done"}
        async with thread.lock:
            if self._is_held_back(thread):
                return {"step": None, "status": "stopped", "reason": f"the run is to stop; {task_id} is done later"}
            return await self._next(thread)

    async def step_complete(self, report: Report) -> dict[str, Any]:
        """A step was done outside, or failed there."""
        handout = self._handout(report.step_id, report.task_id)
        thread = self.thread(handout.task_id or None) if handout is not None else None
        if handout is None or thread is None or report.attempt not in (None, handout.step.get("attempt")):
            return refused(self._owner, self._run_id, report)
        async with thread.lock:
            action = thread.cursor.action
            if isinstance(action, Parallel) and self._standing(thread) == handout.key:
                return await self._report_tasks(thread, action, report.status, report.error)
            return await self._report(thread, handout, report)

    def thread(self, task_id: str | None) -> Thread | None:
        """The thread of a task; None where it is over. InputError for a task that never was."""
        if not task_id:
            return self._main
        for parent in self._main.walk():
            for action in open_batches(parent):
                for index in action.todo:
                    if id_of_task(parent, action, index) == task_id:
                        # One that is tried again begins from its first step, as a thread of its own.
                        return self._batches.create(parent, action, index, handed_out=True)
        for event in self._owner.journal.events(self._run_id):
            if event.kind in (kinds.TASK_STARTED, kinds.TASK_ENDED) and event.data["task"] == task_id:
                return None
        raise InputError(f"run {self._run_id} has no task {task_id!r}; the step parallel_tasks lists them")

    # --- out

    async def _next(self, thread: Thread) -> dict[str, Any]:
        handouts = self._owner.handouts
        held = handouts.held(self._run_id, thread.task_id or "")
        if held is not None:
            if held.key == self._standing(thread):
                self._keep_stop(thread)
                step = await self._with_feedback(thread, held)
                return {"step": await self._handed(thread, held.key, step)}
            await self._take_back(thread.task_id)
        while True:
            action = await self._interpreter.walk(thread)
            if thread.cursor.is_over:
                over = await self._over(thread, action)
                if over is None:  # from the start again
                    thread = self._main = self._opened.image.main
                    continue
                return over
            assert isinstance(action, Execute | Parallel)
            key = _key(thread, action)
            self._interpreter.steps.use_feedback(key)
            steps = self._interpreter.steps
            with steps.attempt(action.step) as tried:  # a template that fails is the step's own failure
                step = (
                    self._atomic(thread, action, key)
                    if isinstance(action, Execute)
                    else self._tasks(thread, action, key)
                )
            if tried.error is not None:
                steps.fail(thread, action.step, tried.error)
                continue
            if isinstance(action, Execute):
                begun = await self._interpreter.steps.begin(thread, action.step, key)
                assert begun == step["attempt"]
            return {"step": await self._handed(thread, key, step)}

    async def _handed(self, thread: Thread, key: str, step: Any) -> Any:
        """Journalled as handed out."""
        handouts = self._owner.handouts
        self._interpreter.ledger.commit(durable=True)
        await self._interpreter.ledger.caught_up()

        def hand_out() -> Any:
            return handouts.hand_out(self._run_id, thread.task_id or "", key, step).step

        return await when_free(self._owner.database, hand_out)

    async def _take_back(self, task_id: str | None) -> None:
        """When all that was done with it is journalled."""
        await self._interpreter.ledger.caught_up()
        handouts = self._owner.handouts
        await when_free(self._owner.database, lambda: handouts.take_back(self._run_id, task_id or ""))

    async def _with_feedback(self, thread: Thread, held: Handout) -> Any:
        """A step that is handed out already, with what was said since; the same step in all else."""
        texts = list(self._opened.image.pending_feedback)
        if not texts:
            return held.step
        self._interpreter.steps.use_feedback(held.key)
        await self._take_back(held.task_id)
        return handout.with_additions(held.step, texts, workflow_id=self._run_id, task_id=thread.task_id)

    def _atomic(self, thread: Thread, action: Execute, key: str) -> dict[str, Any]:
        context = self._interpreter.steps.context(thread, action, key, 1)
        return handout.hand_out(
            action.step,
            context.view,
            key=key,
            workflow_id=self._run_id,
            named_prompt=lambda name, given: named_prompt(context, name, given),
            attempt=self._interpreter.ledger.attempts(key) + 1,
            task_id=thread.task_id,
            additions=context.additions,
        )

    def _tasks(self, thread: Thread, action: Parallel, key: str) -> dict[str, Any]:
        self._batches.record_begin(thread, action)
        children = {index: self._batches.create(thread, action, index, handed_out=True) for index in action.todo}
        context = self._interpreter.steps.task_context(thread)
        description = self._opened.image.task_definition(next(iter(children.values()))).description
        given = {"workflow_id": self._run_id, "task_id": _WHICH_TASK}
        if description.strip():
            given["description"] = description
        return handout.hand_out_tasks(
            action.step,
            self._interpreter.steps.view(thread, action.scope),
            key=key,
            workflow_id=self._run_id,
            tasks={child.task_id or "": child.names for child in children.values()},
            max_parallel=action.max_parallel,
            sub_agent_prompt=named_prompt(context, PROMPT_NAME, given, strict=False),
            description=description,
            attempt=self._interpreter.ledger.start,  # no attempt is journalled: another start takes it back
            task_id=thread.task_id,
            additions=self._opened.image.additions.get(key, ()),
        )

    async def _over(self, thread: Thread, action: Action) -> dict[str, Any] | None:
        if thread.parent is not None:
            return _told_over(action) if self._batches.is_running(thread) else await self._task_over(thread)
        ending = await decide(self._opened, action)
        if ending is None:
            return None
        raise RunEnds(ending)

    async def _task_over(self, thread: Thread) -> dict[str, Any]:
        error = await self._interpreter.finish_task(thread)
        self._batches.end_task(thread, error)
        self._keep_stop(thread)
        status = "failed" if error else "completed"
        return {"step": None, "status": status, "reason": str(error["message"]) if error else "the task is done"}

    # --- back

    async def _report(self, thread: Thread, handout: Handout, report: Report) -> dict[str, Any]:
        steps, action = self._interpreter.steps, thread.cursor.action
        if not isinstance(action, Execute) or thread.step_key() != handout.key:
            await self._take_back(handout.task_id)
            return {"success": True, "message": "its tasks were all done already"}
        attempt = self._interpreter.ledger.attempts(handout.key)
        result = report.result
        if report.status == "failed":
            answer = result if isinstance(result, str) and result.strip() else "the agent says that it failed"
            told = {"message": report.error or answer, "step": action.step.id}
            steps.fail(thread, action.step, told, attempt=attempt)
        else:
            view = self._interpreter.steps.view(thread, action.scope)
            value = read_result(action.step, result, definition=handout.step["definition"], view=view)
            steps.complete(thread, action, value, attempt=attempt, has_result=result is not None)
        await self._take_back(handout.task_id)
        if thread.parent is not None and not self._batches.is_running(thread):
            await self._on(thread)
        return {"success": True}

    async def _on(self, thread: Thread) -> None:
        """What follows in a task, up to the next step for its agent: who reports the last one may not ask again."""
        await self._interpreter.walk(thread)
        if thread.cursor.is_over:
            await self._task_over(thread)

    async def _report_tasks(self, thread: Thread, action: Parallel, status: str, error: str | None) -> dict[str, Any]:
        left = [child for child in list(thread.children.values()) if child.place and child.place[1] in action.todo]
        if status == "failed":
            said = self._interpreter.steps.services.mask.masked_text(error or "")
            told: Error = {"message": said or "its agent says that it failed"}
            for child in left:
                await self._take_back(child.task_id)
                self._batches.end_task(child, told)
            await self._take_back(thread.task_id)
            return {"success": True}
        self._keep_stop(thread)
        names = ", ".join(child.task_id or "" for child in left)
        raise InputError(
            f"these tasks are not done yet: {names}; have a sub-agent call workflow_get_next_step with the task_id of "
            "each until it gets no step, or report the step as failed"
        )

    def _handout(self, step_id: str, task_id: str | None) -> Handout | None:
        held = self._owner.handouts.all_held(self._run_id)
        return next((one for one in held if one.key == step_id and task_id in (None, one.task_id)), None)

    def _standing(self, thread: Thread) -> str | None:
        """The key of the step that the thread waits at for somebody outside."""
        action = thread.cursor.action
        if not self._interpreter.waits_outside(thread, action):
            return None
        assert isinstance(action, Execute | Parallel)
        return _key(thread, action)

    # --- a stop while tasks are in the hands of agents

    def _is_held_back(self, thread: Thread) -> bool:
        """Whether a task is not to begin: a stop was asked for. RunEnds where none is under way."""
        if not self._main.handed_out or thread.parent is None or not _is_fresh(thread):
            return False
        self._keep_stop(thread)
        return self._stop_asked()

    def _keep_stop(self, thread: Thread) -> None:
        """RunEnds where a stop was asked for, the tasks are what the run stands at, and none is under way."""
        action = self._main.cursor.action
        waits = self._main.handed_out and isinstance(action, Parallel) and action.stoppable
        if not waits or (thread is not self._main and thread.parent is not self._main) or not self._stop_asked():
            return
        under_way = [each for each in self._main.walk() if each is not self._main and not _is_fresh(each)]
        if not any(not each.cursor.is_over for each in under_way):
            raise self._interpreter.gate.stopped()

    def _stop_asked(self) -> bool:
        return self._interpreter.gate.stop_requested()


def refused(owner: Owner, run_id: str, report: Report) -> dict[str, Any]:
    """A report of a step that is not handed out: done before, which is no harm; or taken back since, or never given."""
    last = Steps(owner.database).last(run_id, report.step_id)
    if last is not None and last.status in ("completed", "failed") and report.attempt in (None, last.attempt):
        return {"success": True, "message": f"nothing to do: {report.step_id} was reported before, as {last.status}"}
    if last is not None and report.attempt is not None and (report.attempt, "begun") != (last.attempt, last.status):
        raise InputError(
            f"attempt {report.attempt} at step {report.step_id!r} was taken back: somebody else went on with the run. "
            "This report has changed nothing; workflow_get_next_step says what is to be done now"
        )
    run = owner.journal.run(run_id)
    if run.driver == "server" and run.status in OPEN:
        raise InputError(f"run {run_id} is not yours to drive any more: the sidecar itself goes on with it")
    if run.status != "running":
        raise InputError(f"run {run_id} is {run.status}: {run.reason or 'it takes no more steps'}")
    raise InputError(f"step {report.step_id!r} is not handed out; workflow_get_next_step says which one is")


def _key(thread: Thread, action: Execute | Parallel) -> str:
    """The step's; tasks that only the run's end waits for have one of their own."""
    if isinstance(action, Execute) or stands_at(thread.cursor, action.batch):
        return thread.step_key()
    word = f"{action.step.id}#{action.batch}~rest"
    return f"{thread.key}/{word}" if thread.key else word


def _told_over(action: Action) -> dict[str, Any]:
    """For the agent of a task that is done as far as the agent is concerned."""
    if isinstance(action, Finished) and action.status == "completed":
        return {"step": None, "status": "completed", "reason": action.message or "the task is done"}
    reason = action.message if isinstance(action, Finished) else "its limit of iterations is reached"
    return {"step": None, "status": "failed", "reason": reason}


def _is_fresh(thread: Thread) -> bool:
    """Whether nothing of a task was begun."""
    state = thread.cursor.state
    first = isinstance(thread.cursor.action, Boundary) and len(state.frames) == 1 and state.top.place == 0
    return first and not state.transitions and not state.iterations


# Runs whose steps an agent asks for: what it is handed, and what it reports.
