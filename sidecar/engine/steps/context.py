"""What the handler of a step may use of its run: values, settings, processes, events, MCP servers and the person."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from sidecar.agents.adapters.adapter import McpConfiguration
from sidecar.agents.output import Secrets
from sidecar.agents.supervisor import Agent, Launch, unfit
from sidecar.config import Settings
from sidecar.engine.evaluation import View
from sidecar.errors import StepFailed
from sidecar.mcp_client.client import McpClients


class AnswerNeeded(Exception):  # noqa: N818 - not an error: the run pauses
    """A step needs an answer from a person, and this process cannot ask one."""

    def __init__(self, question: dict[str, Any]) -> None:
        super().__init__(question["prompt"])
        self.question = question


class AskablePerson(Protocol):
    """The person whom a run can ask."""

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        """The answer as it was typed; None where the person cannot answer. `problem`: why the last one was refused."""

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        """Run a command on the person's terminal by `run`, which gets a descriptor of it: the exit code; None where
        there is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """What all steps of a run share."""

    root: str
    run_id: str
    workspace: str | None
    environment: Mapping[str, str]
    settings: Settings
    secrets: tuple[str, ...] = ()
    mask: Secrets = field(default_factory=lambda: Secrets(()))  # of these, and of those that its agents are given
    person: AskablePerson | None = None
    clients: McpClients | None = None
    mcp: McpConfiguration | None = None  # connects an agent to this run


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One attempt at one step."""

    services: RunServices
    view: View  # evaluates templates, conditions and commands
    key: str  # identifies this execution of the step in the run
    attempt: int  # counted across crashes and resumes
    task_id: str | None
    additions: tuple[str, ...]  # what a redirect or a gate's feedback adds to the prompt of an agent
    cost_remaining_usd: float | None  # None: no limit
    # Starts a process, journals it, and journals its end whenever it comes. `name` is for people.
    start: Callable[[Launch, str], Awaitable[Agent]]
    log_path: Callable[[], str]  # a new file for the output of the next process
    emit: Callable[[str, dict[str, Any]], None]  # an event (model/run.py); AGENT_OUTPUT and ACTIVITY are not journalled
    spend: Callable[[float | None, int], None]  # cost in USD where known, tokens: counted towards the run's limits

    def directory(self, working_dir: str | None) -> str:
        """Where a step runs: the project's root, or its `working_dir`, which has to be inside the project."""
        root = self.services.root
        if working_dir is None:
            return root
        asked = self.view.text(working_dir)
        if (why := unfit(asked)) is not None:
            raise StepFailed(f"working_dir {asked!r} {why}: it is no path")
        found = os.path.realpath(os.path.join(root, asked))
        real = os.path.realpath(root)
        if found != real and not found.startswith(real.rstrip("/") + "/"):
            raise StepFailed(f"working_dir {asked!r} leads out of the project {root}")
        if not os.path.isdir(found):
            raise StepFailed(f"working_dir {asked!r} is no directory: {found}")
        return found

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """The `env` of a step, rendered."""
        return {name: self.view.text(value) for name, value in env.items()}


# Executes a step: its result, as plain JSON; StepFailed where it fails. Cancelled, it first ends all that it started.
Handler = Callable[[Any, Context], Awaitable[Any]]
