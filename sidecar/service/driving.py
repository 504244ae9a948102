"""Has an outside agent drive a run, and answers what it asks of states, plans and past steps.

Plain JSON in and out; SidecarError for what the caller did wrong.
"""

from __future__ import annotations

import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from sidecar.catalog import listing, workflows
from sidecar.engine import agent_driven
from sidecar.engine.agent_driven import AgentDriven, not_handed_out
from sidecar.engine.boundary import Ending
from sidecar.engine.ending import end_run, end_unheld, ending_of_unheld
from sidecar.engine.execution import locked
from sidecar.engine.handout import StepReport
from sidecar.engine.run import Run
from sidecar.errors import ExpressionError, InputError
from sidecar.model import events as kinds
from sidecar.model.steps import VALUE_IS_MISSING
from sidecar.service.owners import StartOptions, definition_in_thread, in_thread, start
from sidecar.service.runs import (
    COMPLETED_BEFORE,
    RunReader,
    RunService,
    begin_again,
    check_resume,
    created,
    prepare,
    resume,
)
from sidecar.service.status import describe, effective_status, iso_timestamp
from sidecar.signals.run_lock import is_live
from sidecar.state.paths import get, parse, show
from sidecar.state.reactive import Write
from sidecar.state.world import World
from sidecar.store.db import free
from sidecar.store.journal import OPEN, Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from sidecar.config import Project
    from sidecar.engine.execution import Execution
    from sidecar.engine.owner import Owner
    from sidecar.model.events import RunEvent
    from sidecar.service.owners import Executor
    from sidecar.state.reactive import Reactive
    from sidecar.state.script import Script
    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

Json = dict[str, Any]
_MOST_TRACES = 200  # given at once
_WORDS = {"completed": "success", "failed": "failed", "interrupted": "failed", "begun": "running"}
_SLOWEST = 5
# A run that is open holds its state, here and in the evaluator. Nobody says that a driver has gone away, so in a
# process that lives for weeks the ones left behind would be most of its memory.
_KEPT_OPEN = 100


class Driving(RunService):
    """What an outside agent asks: the use cases of every run, and those of the runs that it drives itself."""

    def __init__(
        self,
        project: Project,
        owner: Owner,
        executor: Executor,
        on_event: Callable[[RunEvent], None] = lambda _: None,
    ) -> None:
        """`on_event` gets what happens in runs that others drive."""
        super().__init__(project, owner, executor)
        self._driven = DrivenRuns(owner, on_event)

    # --- agent-driven runs

    async def start(self, workflow: str, inputs: Json | None = None, workspace: str | None = None) -> Json:
        """A run that the caller drives."""
        definition = await self._find(workflow)
        prepared = prepare(self.project, definition, inputs or {}, workspace)
        image = Run.begin(definition, prepared.inputs, self.owner.script)
        try:
            await free(self.owner.database)
            with created(self.project.root, self.owner.journal, prepared, driver="agent") as run_id:
                agent_driven.begin(self.owner, run_id, image)
            state = image.states[()].state.flattened()
        finally:
            image.states.close()
        return {"workflow_id": run_id, "state": state}

    async def next_step(
        self, workflow_id: str, task_id: str | None = None, sub_agent_context: Json | None = None
    ) -> Json:
        """The step to be done now."""
        self._run(workflow_id)
        task = _task(task_id, sub_agent_context) or str((sub_agent_context or {}).get("batch_id") or "") or None
        return await (await self._driver(workflow_id)).next_step(task)

    async def step_complete(  # noqa: PLR0917 - the arguments of the tool
        self,
        workflow_id: str,
        step_id: str,
        status: str = "success",
        result: Any = None,
        error: str | None = None,
        attempt: int | None = None,
        task_id: str | None = None,
        sub_agent_context: Json | None = None,
    ) -> Json:
        """A step was done."""
        task_id = _task(task_id, sub_agent_context)
        report = StepReport(step_id, status, result, error, task_id, attempt)
        run = self._run(workflow_id)
        if run.driver == "server" and self.open_here(workflow_id) is None and task_id is None:
            return not_handed_out(self.owner, workflow_id, report)
        return await (await self._driver(workflow_id)).step_complete(report)

    async def resume(
        self,
        workflow_id: str,
        feedback: str | None = None,
        answer: Any = None,
        driver: str | None = None,
        approve: bool = False,
        *,
        asker: str | None = None,
    ) -> Json:
        """Go on with a run. The caller drives it from then on, unless that is to be the sidecar; a run that is paused
        keeps its driver. `asker`: the run whose agent asks, where one does."""
        run = self._run(workflow_id)
        options = StartOptions(feedback, approve, answer)
        driver = driver or (run.driver if run.status == "paused" else "agent")
        if run.status == "completed" or driver == "server":
            return await self._resume_by_server(run, options, asker)
        await check_resume(self.project, self.owner.database, run, options, asker=asker, script=self.owner.trials)
        if answer is not None:
            raise InputError("an answer goes to the sidecar: say `driver: server` with it")
        if (run.driver, run.status) == ("agent", "running"):
            return await self._give_feedback(run, feedback)
        return await self._resume_by_agent(workflow_id, feedback, approve=approve)

    async def _give_feedback(self, run: StoredRun, feedback: str | None) -> Json:
        """An agent drives the run already: feedback goes into the next step that it is handed."""
        if feedback is not None:
            async with self._driven.driver(run.run_id).held() as execution:
                if execution is None:
                    raise InputError(f"run {run.run_id} has ended meanwhile: the feedback was not used")
                execution.run.states.set_feedback(feedback)
                execution.run.pending_feedback.append(feedback)
                await execution.ledger.checkpoint()
        return await self._resumed(self._run(run.run_id))

    async def _resume_by_server(self, run: StoredRun, options: StartOptions, asker: str | None) -> Json:
        run_id, owner = run.run_id, self.owner
        resumed = await resume(
            *(self.project, owner.database, run, options), asker=asker, script=owner.trials, report=owner.report
        )
        if resumed is None:
            return {**await self._resumed(run), "message": COMPLETED_BEFORE}
        self._driven.close(run_id)
        is_executed = await start(self._executor, owner.journal, run_id, resumed)
        return await (self._resumed if is_executed else self._not_resumed)(self._run(run_id))

    async def _resume_by_agent(self, run_id: str, feedback: str | None, *, approve: bool) -> Json:
        self._driven.close(run_id)
        async with locked(self.project.root, run_id):
            await free(self.owner.database)
            run = self._run(run_id)
            ending = None if run.status not in OPEN or run.status == "pending" else ending_of_unheld(self.owner, run)
            if ending is not None:
                end_unheld(self.owner, run, ending, self.owner.emit)
                return await self._not_resumed(self._run(run_id))
            for warning in begin_again(self.project.root, self.owner.journal, run, "agent"):
                self.owner.report(warning)
            agent_driven.resume(self.owner, run_id, feedback, approve=approve)
        return await self._resumed(self._run(run_id))

    async def _not_resumed(self, run: StoredRun) -> Json:
        why = f"nothing was executed, and what was given with the call was not used: it is {run.status}: {run.reason}"
        return {**await self._resumed(run), "message": why}

    async def _resumed(self, run: StoredRun) -> Json:
        kept = self.owner.checkpoints.last(run.run_id)
        step = describe(self.owner.database, self.project.root, run.run_id)["step"]
        at = iso_timestamp(kept.at) if kept else None
        return {
            "workflow_id": run.run_id,
            "state": await self._state(run.run_id),
            "last_checkpoint": {"step_id": step, "timestamp": at},
        }

    async def checkpoint(self, workflow_id: str, step_id: str | None = None, reason: str | None = None) -> Json:
        """The run can be resumed from here, in another conversation."""
        run = self._run(workflow_id)
        async with self._held(workflow_id) as execution:
            if execution is not None:
                execution.ledger.record(kinds.CHECKPOINTED, step=step_id, reason=reason)
                await execution.ledger.checkpoint()
        kept = self.owner.checkpoints.last(run.run_id)
        number = kept.number if kept else 0
        return {"checkpoint_id": f"{workflow_id}/{number}", "state_path": self.owner.database.path}

    async def complete(self, workflow_id: str, status: str = "success") -> Json:
        """The caller is done with the run."""
        run = self._run(workflow_id)
        if run.driver == "agent" and run.status == "running":
            endings = {
                "failed": Ending("failed", "the agent says that it failed"),
                "cancelled": Ending("aborted", "cancelled by the agent"),
            }
            if status not in endings:
                step = (await self.next_step(workflow_id))["step"]
                if step is not None:
                    raise InputError(f"step {step['id']!r} is still to be done: workflow_get_next_step gives it")
            else:
                async with self._driven.driver(workflow_id).held() as execution:
                    if execution is not None:
                        await end_run(execution, endings[status])
        return {"success": True, "status": self._run(workflow_id).status, "final_state": await self._state(workflow_id)}

    async def stage_gate(
        self, stage: str, output: str, kind: str = "stage", run_id: str | None = None, *, asker: str | None = None
    ) -> Json:
        """A stage is submitted for approval: the run pauses."""
        run_id = run_id or asker
        if not run_id:
            raise InputError("`run_id` is missing, and SIDECAR_RUN_ID does not say which run this is")
        run = self._run(run_id)
        reply = {"allowed": False, "pause_required": True, "run_id": run_id}
        if run.driver == "server":
            submitted = await self._executor.submit_stage(run_id, stage, output, kind)
            if submitted is None:
                raise InputError(f"run {run_id} is not executed here: it is {effective_status(self.project.root, run)}")
            return reply
        async with self._driven.driver(run_id).held() as execution:
            if execution is None:
                raise InputError(f"run {run_id} is {run.status}")
            waits = {"stage": stage, "output": output, "kind": kind, "step": execution.run.main.step_key()}
            execution.ledger.record(kinds.GATE, **waits)
            await end_run(execution, Ending("paused", f"{stage} waits for approval", waits=waits))
        return reply

    # --- what is to be known

    async def workflow_list(self, include_global: bool = True) -> Json:
        """The workflows there are, as seed 004 lists them."""
        return await in_thread(_workflow_list, self.project.root, include_global)

    async def workflow_info(self, workflow: str) -> Json:
        """What a workflow asks for."""
        return await in_thread(_workflow_info, self.project.root, workflow)

    async def load_definition(self, workflow: str) -> Json:
        """The whole definition."""
        return await in_thread(_definition, self.project.root, workflow)

    async def state_read(self, workflow_id: str, paths: list[str] | None = None) -> Json:
        """The flattened state, or some of it."""
        state = await self._state(workflow_id)
        return {path: get(state, _flat(path)) for path in paths} if paths else state

    async def state_update(self, workflow_id: str, updates: list[Json]) -> Json:
        """Writes by the agent itself, in one transaction."""
        for number, one in enumerate(updates):
            if "value" not in one and one.get("operation") != "increment":
                raise InputError(f"updates[{number}]: {VALUE_IS_MISSING}")
        run = self._run(workflow_id)
        async with self._held(workflow_id) as execution:
            if execution is None:
                raise InputError(f"run {workflow_id} is {run.status}: its state is not written any more")
            writes = [Write(one["path"], one.get("value"), one.get("operation", "set")) for one in updates]
            return {"success": True, "changed": await self.write_state(execution, writes)}

    async def write_state(self, execution: Execution, writes: list[Write]) -> Json:
        """Write the run's own state; the computed fields that have another value now."""
        space = execution.run.states[()]
        parsed = [Write(parse(w.path) if isinstance(w.path, str) else w.path, w.value, w.operation) for w in writes]
        changed = space.state.update(parsed)
        execution.ledger.record_writes((), [[one.path, one.value, one.operation] for one in parsed])
        execution.ledger.record(kinds.STATE_UPDATED, paths=[show(one.path) for one in parsed])  # type: ignore[arg-type]
        execution.ledger.commit(durable=True)
        await execution.ledger.caught_up()
        flattened = space.state.flattened()
        return {name: flattened.get(name) for name in changed}

    async def state_dependencies(self, workflow_id: str, field: str) -> Json:
        """What a computed field reads, and who reads it."""
        async with RunReader(self, workflow_id) as image:
            return _dependencies(image.states[()].state, field)

    async def trace(self, workflow_id: str, field: str | None = None, include_timing: bool = False) -> Json:
        """What computed fields did; one of them by its name or by its path."""
        field = field.removeprefix("computed.") if field is not None else None
        self._run(workflow_id)
        return _traces(self._trail(workflow_id, field)[0], timing=include_timing)

    async def debug_info(self, workflow_id: str) -> Json:
        """Where the run stands and how it came there."""
        step = describe(self.owner.database, self.project.root, workflow_id)["step"]
        history = _history(self.owner.database, workflow_id)
        async with RunReader(self, workflow_id) as image:
            metrics = _state_metrics(image.states[()].state, *self._trail(workflow_id))
            return {"current_step": step, "step_history": history, **metrics}

    async def test_transformation(self, transform: str, input: Any, context: Json | None = None) -> Json:  # noqa: A002
        """A transformation, tried out."""
        return await in_thread(_try_transform, self.owner.trials, transform, input, context or {})

    async def explain_plan(self, workflow: str, inputs: Json | None = None) -> Json:
        """What would be done."""
        definition = await self._find(workflow)
        return await self._plan(prepare(self.project, definition, inputs or {}))

    # --- inside

    def _trail(self, run_id: str, field: str | None = None) -> tuple[list[Json], int]:
        """The last computations, and how many there were: what the journal has, and what waits to be written."""
        execution, journalled = self.open_here(run_id), self.owner.transformations
        waiting = execution.run.states.traces if execution is not None else []
        found = journalled.newest(run_id, _MOST_TRACES, field)
        found += journalled.masked(run_id, [one for one in waiting if field in (None, one["field"])])
        return found[-_MOST_TRACES:], journalled.total(run_id) + sum(one["applied"] for one in waiting)

    async def _driver(self, run_id: str) -> AgentDriven:
        """The run that is open here, or one that is nobody's and lent for each call."""
        held = await definition_in_thread(self.owner, self._run(run_id))  # first: who has the driver waits for nothing
        execution = self.open_here(run_id)
        if execution is not None:
            return AgentDriven(self.owner, run_id, self.owner.emit, live=execution)
        run = self._run(run_id)
        if run.driver == "server" and is_live(self.project.root, run_id):
            raise InputError(f"run {run_id} is executed by another process: ask it, at the run's own socket")
        driver = self._driven.driver(run_id)
        driver.definition = held
        return driver

    @asynccontextmanager
    async def _held(self, run_id: str) -> AsyncIterator[Execution | None]:
        """The run for a moment; None where it is over."""
        driver = await self._driver(run_id)
        async with driver.held() as execution:
            yield execution


def _flat(path: str) -> tuple[str | int, ...]:
    """A path as the flattened state has it: without its section."""
    parsed = parse(path)
    return parsed[1:] if parsed[0] in ("raw", "state", "computed") and len(parsed) > 1 else parsed


class DrivenRuns:
    """Each run has one driver at a time; those that nobody asked for in a long while are closed."""

    def __init__(self, owner: Owner, on_event: Callable[[RunEvent], None], kept_open: int = _KEPT_OPEN) -> None:
        self._owner = owner
        self._on_event = on_event
        self._kept_open = kept_open
        self._drivers: dict[str, AgentDriven] = {}  # who was asked last stands last

    def driver(self, run_id: str) -> AgentDriven:
        """The run, to be driven at once: who waits first may find that it was closed meanwhile."""
        driver = self._drivers.pop(run_id, None) or AgentDriven(self._owner, run_id, self._on_event)
        for other in list(self._drivers):
            if len(self._drivers) < self._kept_open:
                break
            if self._drivers[other].let_go():
                del self._drivers[other]
        self._drivers[run_id] = driver
        return driver

    def close(self, run_id: str) -> None:
        """What is open of the run is out of date. A call that is under way finds that out from the journal."""
        driver = self._drivers.pop(run_id, None)
        if driver is not None and not driver.let_go():
            self._drivers[run_id] = driver


# --- what is shown of workflows, states and steps


def _task(task_id: str | None, context: Json | None) -> str | None:
    """The task's id, wherever the caller put it."""
    found = (context or {}).get("task_id") if task_id is None else task_id
    return found if isinstance(found, str) else None


def _workflow_list(root: str, include_global: bool) -> Json:
    found, problems = listing.workflows(root)
    shown = [
        {key: row[key] for key in ("name", "path", "description", "source")}
        for row in found
        if include_global or row["source"] != "global"
    ]
    return {"workflows": shown, **({"problems": problems} if problems else {})}


def _workflow_info(root: str, name: str) -> Json:
    """What a workflow asks for."""
    definition = workflows.find(root, name)
    workflow = definition.workflow
    inputs = {
        one.name: one.model_dump(exclude={"name"}, exclude_unset=True, mode="json") for one in workflow.parameters
    }
    return {
        "name": definition.name,
        "description": workflow.description,
        "inputs": inputs,
        "version": workflow.version,
        "found_at": definition.loaded_from,
    }


def _definition(root: str, name: str) -> Json:
    """The whole of it."""
    found = workflows.find(root, name)
    content = found.workflow.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "name": found.name,
        "steps": content.get("steps") or [],
        "state_schema": content.get("state_schema") or {},
        "sub_agent_tasks": content.get("sub_agent_tasks") or {},
        "loaded_from": found.loaded_from,
    }


def _dependencies(state: Reactive, field: str) -> Json:
    """What a computed field reads, and who reads it."""
    found = state.graph.dependencies(field)
    return {
        "direct_deps": list(found.direct),
        "all_deps": list(found.transitive),
        "dependents": list(found.dependents),
    }


def _traces(found: list[Json], *, timing: bool) -> Json:
    """How computed fields came to their values."""
    return {"traces": [_trace(one, timing=timing) for one in found]}


def _history(database: Database, run_id: str) -> list[Json]:
    """Every step of a run, in the order in which they were begun."""
    return [
        {
            "step_id": step.key,
            "started_at": iso_timestamp(step.began_at),
            "completed_at": iso_timestamp(step.ended_at) if step.ended_at else None,
            "status": _WORDS[step.status],
        }
        for step in Steps(database).steps(run_id)
    ]


def _state_metrics(state: Reactive, found: list[Json], total: int) -> Json:
    """How large a state is, and what its computed fields cost, by the last of `total` computations."""
    times: dict[str, list[float]] = {}
    for one in found:
        times.setdefault(one["field"], []).append(one["duration_ms"])
    averages = {name: sum(spent) / len(spent) for name, spent in times.items()}
    slowest = sorted(averages.items(), key=lambda entry: -entry[1])[:_SLOWEST]
    every = [spent for some in times.values() for spent in some]
    return {
        "state_size": {
            "raw_bytes": _bytes(state.raw),
            "computed_bytes": _bytes(state.computed),
            "total_transformations": total,
        },
        "performance": {
            "avg_transformation_time": sum(every) / len(every) if every else 0.0,
            "slowest_transformations": [{"field": name, "avg_ms": spent} for name, spent in slowest],
        },
    }


def _try_transform(script: Script, transform: str, given: Any, context: Mapping[str, Any]) -> Json:
    """A transformation, tried out on an input."""
    begun = time.perf_counter()
    world = World(script)
    try:
        for name, value in context.items():
            world.set(name, value)
        output = world.run(script.compile(transform), {"input": given})
        answer: Json = {"success": True, "output": output}
    except ExpressionError as error:
        answer = {"success": False, "error": str(error)}
    finally:
        world.close()
    return {**answer, "execution_time_ms": (time.perf_counter() - begun) * 1000}


def _trace(one: Json, *, timing: bool) -> Json:
    shown = {"field": one["field"], "timestamp": iso_timestamp(one["at"])}
    if one["space"]:  # of an included workflow: the steps that include it
        shown["included_by"] = one["space"]
    left_out = {"space", "at"} if timing else {"space", "at", "duration_ms"}
    return {**shown, **{key: value for key, value in one.items() if key not in left_out}}


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
