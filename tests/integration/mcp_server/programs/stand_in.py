"""Use cases that stand in for the real ones: runs of real workflow files that do nothing but tell, ask and wait.

As a program it serves them on standard input and output: `stand_in.py ROOT`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from sidecar.catalog import workflows
from sidecar.errors import NotFound, SidecarError
from sidecar.mcp_server.calls import Ask, Json, OnEvent
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent


class _Run:
    def __init__(self, name: str, on_event: OnEvent) -> None:
        self.run_id = ulid.new()
        self.name = name
        self.status = "running"
        self.aborted: str | None = None
        self.over = anyio.Event()
        self._on_event = on_event

    def tell(self, kind: str, **data: Any) -> None:
        self._on_event(RunEvent(self.run_id, kind, time.time(), data))


class StandIn:
    """What was called is in `calls`, and in the project's `calls.jsonl` for who looks from outside."""

    def __init__(self, root: Path, tasks: TaskGroup) -> None:
        self._root = root
        self._tasks = tasks
        self.calls: list[tuple[str, Json]] = []
        self.runs: dict[str, _Run] = {}

    @property
    def flow(self) -> Any:
        return self._launch

    @property
    def agent(self) -> Any:
        return self._launch

    @property
    def prompt(self) -> Any:
        return self._launch

    def called(self, name: str) -> list[Json]:
        return [given for called, given in self.calls if called == name]

    def _note(self, what: str, /, **given: Any) -> None:
        self.calls.append((what, given))
        with (self._root / "calls.jsonl").open("a") as file:
            file.write(json.dumps([what, given]) + "\n")

    async def _launch(
        self,
        name: str,
        parameters: Json,
        *,
        on_event: OnEvent,
        ask: Ask | None,
        dry_run: bool,
        workspace: str | None,
        detach: bool,
    ) -> Json:
        self._note("launch", name=name, parameters=parameters, workspace=workspace, detach=detach, asks=bool(ask))
        if dry_run:
            return {"plan": [name]}
        if "crash" in parameters:
            raise RuntimeError(parameters["crash"])
        if "wrong" in parameters:
            raise SidecarError(parameters["wrong"])
        started = _Run(name, on_event)
        self.runs[started.run_id] = started
        self._tasks.start_soon(self._carry_out, started, parameters, ask)
        if not detach:
            await started.over.wait()
        if started.aborted is not None:
            raise SidecarError(f"aborted: {started.aborted}")
        return self._status(started)

    async def _carry_out(self, started: _Run, parameters: Json, ask: Ask | None) -> None:
        try:
            started.status, reason = await self._steps(started, parameters, ask)
            started.tell(kinds.RUN_ENDED, status=started.status, reason=reason)
        finally:
            started.over.set()

    async def _steps(self, started: _Run, parameters: Json, ask: Ask | None) -> tuple[str, str | None]:
        started.tell(kinds.RUN_STARTED, workflow=started.name)
        for _ in range(parameters.get("chatter", 0)):
            started.tell(kinds.AGENT_OUTPUT, agent_id="1", lines=["x" * 100])
            started.tell(kinds.STEP_STARTED, step="first", id="first")
        for step in ("first", "second"):
            started.tell(kinds.STEP_STARTED, step=step, id=step)
            if step == "first" and (ended := await self._middle(started, parameters, ask)):
                return ended
            started.tell(kinds.STEP_COMPLETED, step=step, id=step)
        return "completed", None

    async def _middle(self, started: _Run, parameters: Json, ask: Ask | None) -> tuple[str, str | None] | None:
        while parameters.get("hold") and not (self._root / "release").exists():
            if started.aborted is not None:
                return "aborted", started.aborted
            await anyio.sleep(0.01)
        for question in parameters.get("questions", []):
            answer = None if ask is None else await ask(question, None)
            self._note("answered", answer=answer)
            if answer is None:
                return "paused", "waits for an answer"
        return ("failed", parameters["fail"]) if "fail" in parameters else None

    def _status(self, one: _Run) -> Json:
        about = {"run_id": one.run_id, "workflow": one.name, "status": one.status, "reason": None}
        return {**about, "state": {}, "messages": []}

    def _known(self, run_id: str) -> _Run:
        if run_id not in self.runs:
            raise NotFound(f"no such run: {run_id}")
        return self.runs[run_id]

    async def stop(
        self,
        workspace: str | None = None,
        run_id: str | None = None,
        reason: str | None = None,
        cancel: bool = False,
        *,
        asker: str | None = None,
    ) -> Json:
        self._note("stop", workspace=workspace, run_id=run_id, reason=reason, cancel=cancel, asker=asker)
        return {"success": True}

    async def abort(
        self, reason: str, run_id: str | None = None, workspace: str | None = None, *, asker: str | None = None
    ) -> Json:
        self._note("abort", reason=reason, run_id=run_id, workspace=workspace, asker=asker)
        for one in self.runs.values():
            if run_id in (None, one.run_id):
                one.aborted = reason
        return {"success": True}

    async def stage_gate(
        self, stage: str, output: str, kind: str = "stage", run_id: str | None = None, *, asker: str | None = None
    ) -> Json:
        self._note("stage_gate", stage=stage, output=output, kind=kind, run_id=run_id or asker)
        return {"allowed": False, "pause_required": True}

    async def workflow_list(self, include_global: bool = True) -> Json:
        return {"workflows": []}

    async def workflow_info(self, workflow: str) -> Json:
        self._note("workflow_info", name=workflow)
        found = workflows.find(str(self._root), workflow)
        return {"name": found.name, "inputs": {}, "description": "", "version": "1", "found_at": "here"}

    async def load_definition(self, workflow: str) -> Json:
        self._note("load_definition", name=workflow)
        return {"name": workflows.find(str(self._root), workflow).name, "steps": []}

    async def start(self, workflow: str, inputs: Json | None = None, workspace: str | None = None) -> Json:
        self._note("start", workflow=workflow, inputs=inputs or {}, workspace=workspace)
        return {"workflow_id": ulid.new(), "state": {}}

    async def next_step(
        self, workflow_id: str, task_id: str | None = None, sub_agent_context: Json | None = None
    ) -> Json:
        self._note("next_step", workflow_id=workflow_id, task_id=task_id, context=sub_agent_context)
        return {"step": None, "status": "completed", "reason": None}

    async def step_complete(
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
        self._note("step_complete", step_id=step_id, status=status, result=result, error=error, task_id=task_id)
        return {"success": True}

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
        said = {"feedback": feedback, "answer": answer, "approve": approve, "asker": asker}
        self._note("resume", workflow_id=workflow_id, **said)
        return {"workflow_id": workflow_id, "state": {}, "last_checkpoint": None}

    async def checkpoint(self, workflow_id: str, step_id: str | None = None, reason: str | None = None) -> Json:
        self._note("checkpoint", workflow_id=workflow_id, step_id=step_id, reason=reason)
        return {"checkpoint_id": "1", "state_path": "here"}

    async def complete(self, workflow_id: str, status: str = "success") -> Json:
        self._note("complete", workflow_id=workflow_id, status=status)
        return {"success": True, "final_state": {}}

    async def status(self, workflow_id: str | None = None) -> Json:
        found = list(self.runs.values()) if workflow_id is None else [self._known(workflow_id)]
        return {"runs": [self._status(one) for one in reversed(found)]}

    def newest_runs(self) -> list[Json]:
        return [self._status(one) for one in reversed(self.runs.values())]

    async def state_read(self, workflow_id: str, paths: list[str] | None = None) -> Json:
        self._note("state_read", workflow_id=workflow_id, paths=paths)
        return {"count": 1}

    async def state_update(self, workflow_id: str, updates: list[Json]) -> Json:
        self._note("state_update", workflow_id=workflow_id, updates=updates)
        return {"success": True, "changed": {}}

    async def state_dependencies(self, workflow_id: str, field: str) -> Json:
        return {"direct_deps": [], "all_deps": [], "dependents": []}

    async def trace(self, workflow_id: str, field: str | None = None, include_timing: bool = False) -> Json:
        return {"traces": []}

    async def debug_info(self, workflow_id: str) -> Json:
        return {"current_step": None, "step_history": []}

    async def test_transformation(self, transform: str, input: Any, context: Json | None = None) -> Json:  # noqa: A002
        output = {"half": {"\ud83d": 1}, "odd": [float("nan"), float("inf")]}.get(transform, input)
        return {"success": True, "output": output, "execution_time_ms": 0.1}

    async def explain_plan(self, workflow: str, inputs: Json | None = None) -> Json:
        return {"steps": [], "required_tools": []}

    async def answer(self, workflow_id: str, value: Any) -> Json:
        self._note("answer", workflow_id=workflow_id, value=value)
        return {"run_id": workflow_id, "status": "running"}


@asynccontextmanager
async def standing_in(root: Path) -> AsyncIterator[StandIn]:
    """The use cases, and the runs that they start."""
    async with anyio.create_task_group() as tasks:
        yield StandIn(root, tasks)
        tasks.cancel_scope.cancel()


async def main(root: Path) -> None:
    from sidecar.mcp_server.calls import Site
    from sidecar.mcp_server.server import serving
    from sidecar.mcp_server.streams import standard_streams

    async with standard_streams() as (source, sink), standing_in(root) as service:
        print("this must not reach the client")  # noqa: T201
        async with serving(Site(service, str(root))) as server:  # type: ignore[arg-type]
            await server.serve(source, sink)


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
