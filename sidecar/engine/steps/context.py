"""What a step's handler may use of its run: the place where it stands, processes, and somebody to tell."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sidecar.agents.launch import unfit
from sidecar.agents.mask import Secrets
from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from sidecar.agents.adapters.adapter import McpConfiguration
    from sidecar.agents.agent import Agent
    from sidecar.agents.launch import Launch
    from sidecar.config import Settings
    from sidecar.engine.evaluation import View
    from sidecar.model.steps import StepBase


class AnswerNeeded(Exception):  # noqa: N818 - not an error: the run pauses
    """A step waits for a person whom nobody here can ask; `question` is what to ask."""

    def __init__(self, question: dict[str, Any]) -> None:
        super().__init__(question["prompt"])
        self.question = question


class Clients(Protocol):
    """The MCP servers that a run has open; kept for the run, closed with it."""

    async def call(self, server: str | None, tool: str, arguments: dict[str, Any], timeout_s: float | None) -> Any:
        """What a tool answers; StepFailed where it fails."""


class AskablePerson(Protocol):
    """Whoever sits at the terminal, where somebody does."""

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        """The answer as it was typed; None where nobody can be asked. `problem`: what was wrong with the last one."""

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        """Leave the terminal to a command while `run`, which gets a descriptor of it, runs one there: the exit code;
        None where there is no terminal to lend."""


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
    clients: Clients | None = None
    mcp: McpConfiguration | None = None  # leads an agent's MCP client to this run


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One attempt at one step."""

    services: RunServices
    view: View  # templates, conditions and commands are evaluated through it
    key: str  # tells this execution of the step from every other of the run
    attempt: int  # across crashes and resumes
    task_id: str | None
    additions: tuple[str, ...]  # what a redirect or a gate's feedback adds to the prompt of an agent
    cost_left_usd: float | None  # None: no limit
    # Starts a process, journals it, and journals its end whenever it comes. `name` is for people.
    start: Callable[[Launch, str], Awaitable[Agent]]
    log_path: Callable[[], str]  # a new file for the next process's output
    emit: Callable[[str, dict[str, Any]], None]  # an event (model/run.py); AGENT_OUTPUT and ACTIVITY are not journalled
    spend: Callable[[float | None, int], None]  # cost in USD where known, tokens: counted towards the run's limits

    def directory(self, working_dir: str | None) -> str:
        """Where a step runs: the project's root, or what its `working_dir` says, which has to be inside it."""
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


class Handler(Protocol):
    """Does what a step says; StepFailed where that fails. Cancelled: everything that it started is ended first."""

    async def __call__(self, step: Any, context: Context) -> Any:
        """The step's result, as JSON has it."""


Handlers = dict[type["StepBase"], Handler]
