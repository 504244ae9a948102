"""What the MCP server asks of the use cases: plain JSON in and out, SidecarError for what a caller did wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from sidecar.model.events import RunEvent

Json = dict[str, Any]
# Called on the event loop, and never slow: what a run tells must not wait for whoever listens.
Tell = Callable[[RunEvent], None]
# Asks the person at the client, as `engine.steps.context.AskablePerson.ask` does: the question, and what was wrong with
# the last answer. None where the person does not answer: the run then pauses.
Ask = Callable[[Json, str | None], Awaitable[str | None]]


class Launcher(Protocol):
    """A use case that starts a run and gives what became of it; `detach`: that it was started.

    The run lives elsewhere: whoever cancels this call stops waiting, no more. `abort` is what ends the run.
    """

    async def __call__(
        self,
        name: str,
        parameters: Json,
        *,
        format: str,  # noqa: A002 - the tools' word for it
        verbose: bool,
        interactive: bool,
        dry_run: bool,
        quiet: bool,
        workspace: str | None,
        detach: bool,
        tell: Tell,
        ask: Ask | None,
    ) -> Json:
        """The plan, or the object of `status` with `state` and `messages`."""


class Service(Protocol):
    """The use cases, by the words of the tools."""

    @property
    def flow(self) -> Launcher:
        """Run a workflow."""

    @property
    def agent(self) -> Launcher:
        """Run an agent."""

    @property
    def prompt(self) -> Launcher:
        """Give a prompt to the default agent."""

    async def stop(
        self,
        workspace: str | None = None,
        run_id: str | None = None,
        reason: str | None = None,
        cancel: bool = False,
        *,
        asker: str | None = None,
    ) -> Json: ...

    async def abort(
        self, reason: str, run_id: str | None = None, workspace: str | None = None, *, asker: str | None = None
    ) -> Json: ...

    async def stage_gate(self, stage: str, output: str, kind: str, run_id: str | None) -> Json: ...

    async def workflow_info(self, name: str) -> Json: ...

    async def load_definition(self, name: str) -> Json: ...

    async def start(self, workflow: str, inputs: Json, workspace: str | None) -> Json: ...

    async def next_step(self, workflow_id: str, task_id: str | None, context: Json | None) -> Json: ...

    async def step_complete(  # noqa: PLR0917 - the tool's own arguments
        self,
        workflow_id: str,
        step_id: str,
        status: str,
        result: Any,
        error: str | None,
        task_id: str | None,
        attempt: int | None,
    ) -> Json: ...

    async def resume(
        self,
        workflow_id: str,
        feedback: str | None,
        answer: Any,
        new_driver: str | None,
        *,
        approve: bool,
        asker: str | None,
    ) -> Json: ...

    async def checkpoint(self, workflow_id: str, step_id: str | None, reason: str | None) -> Json: ...

    async def complete(self, workflow_id: str, status: str) -> Json: ...

    async def status(self, workflow_id: str | None = None) -> Json: ...

    async def state_read(self, workflow_id: str, paths: list[str] | None) -> Json: ...

    async def state_update(self, workflow_id: str, updates: list[Json]) -> Json: ...

    async def state_dependencies(self, workflow_id: str, field: str) -> Json: ...

    async def trace(self, workflow_id: str, field: str | None, include_timing: bool) -> Json: ...

    async def debug_info(self, workflow_id: str) -> Json: ...

    async def test_transformation(self, transform: str, input: Any, context: Json | None) -> Json: ...  # noqa: A002

    async def explain_plan(self, workflow: str, inputs: Json) -> Json: ...

    async def answer(self, workflow_id: str, value: Any) -> Json: ...
