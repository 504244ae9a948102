"""A run in the foreground: executed by this process, shown as it goes on, ended by Ctrl-C, and told by an exit code."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sidecar import layout
from sidecar.cli import showing
from sidecar.cli.outlet import Outlet
from sidecar.display.lines import PlainLines
from sidecar.display.person import TerminalSession
from sidecar.engine.boundary import Ending
from sidecar.engine.owner import Owner
from sidecar.engine.replay import load
from sidecar.errors import SidecarError, UnwrappedErrors
from sidecar.mcp_server import doors
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.notify.observing import observing
from sidecar.notify.telling import telling
from sidecar.service import keeping
from sidecar.service.runs import last_turn
from sidecar.service.status import as_json, describe, event_as_json, messages
from sidecar.text import clean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup, TaskStatus

    from sidecar.catalog.workflows import Definition
    from sidecar.config import Project
    from sidecar.display.panel import Panel
    from sidecar.engine.server_driven import ServerDriven
    from sidecar.engine.steps.context import AskablePerson

OK, FAILED, LIMIT = 0, 2, 3
_SIGNALLED = 128  # and the number of the signal
CODES = {"completed": OK, "stopped": OK, "paused": OK, "failed": FAILED, "aborted": FAILED, "interrupted": FAILED}
_TERMINAL = 0


@dataclass(frozen=True, slots=True)
class Manner:
    """How a run is shown. With none of the others: the live panel on a terminal, elsewhere a line for everything."""

    panel: bool = True  # where it can be
    quiet: bool = False  # only the result
    json: bool = False  # only one object, at the end
    json_events: bool = False  # an object for each event
    agent: bool = False  # the result is what the agent said: only that goes to standard output

    @property
    def gives_answer(self) -> bool:
        """Whether the agent's answer is written, and not an object that has it."""
        return self.agent and not (self.json or self.json_events)

    def shows_panel(self, environment: Mapping[str, str]) -> bool:
        """Whether it is the panel that shows it."""
        return self.panel and not (self.quiet or self.json or self.json_events) and showing.is_possible(environment)


@dataclass(frozen=True, slots=True)
class Given:
    """What goes into this start besides the run itself."""

    feedback: str | None = None
    approve: bool = False
    answer: tuple[str, Any] | None = None  # to the question of a step, by its key
    definition: Definition | None = None  # in place of the one that the run began with
    request: str | None = None  # under which it was handed over to us; None: it belongs to this terminal
    begun: Callable[[], None] = lambda: None  # called when the run is ours, and running


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it: how it ended, the object of `--json`, and which of Ctrl-C and SIGTERM ended it."""

    ending: Ending
    described: dict[str, Any] | None
    signalled: int | None

    @property
    def code(self) -> int:
        """The exit code."""
        if self.ending.limit:
            return LIMIT
        if self.ending.status == "interrupted" and self.signalled is not None:
            return _SIGNALLED + self.signalled
        return CODES[self.ending.status]


def execute(project: Project, run_id: str, manner: Manner, given: Given | None = None) -> int:
    """Execute a run from where it stands to its next end; the exit code."""
    outlet = Outlet()
    try:
        outcome = anyio.run(_Foreground(project, run_id, manner, given or Given(), outlet).run)
        _tell_end(outcome, run_id, manner, outlet, given or Given())
    finally:
        outlet.close()
    if outlet.lost and (manner.json or manner.gives_answer):
        again = f"; to read it: sidecar resume {run_id} --json" if outcome.ending.status == "completed" else ""
        raise SidecarError(f"{outcome.ending.status}, but the result cannot be written: {outlet.lost}{again}")
    return outcome.code


class _Foreground:
    """One start of a run in this process."""

    def __init__(self, project: Project, run_id: str, manner: Manner, given: Given, outlet: Outlet) -> None:
        self._project = project
        self._run_id = run_id
        self._manner = manner
        self._given = given
        self._outlet = outlet
        self._panel: Panel | None = None
        self._tell_event = self._teller()
        self._execution: ServerDriven | None = None
        self._received: list[int] = []

    async def run(self) -> Outcome:
        """From the first signal that we obey to the last word."""
        try:
            with UnwrappedErrors():
                async with anyio.create_task_group() as tasks:
                    await tasks.start(self._obey)
                    ended = await self._owned(tasks)
                    tasks.cancel_scope.cancel()
        except OSError as error:
            where = error.filename or layout.state_directory(self._project.root)
            raise SidecarError(f"the run cannot be kept in {where}: {error.strerror}") from None
        return Outcome(*ended, self._received[0] if self._received else None)

    async def _owned(self, tasks: TaskGroup) -> tuple[Ending, dict[str, Any] | None]:
        project, given = self._project, self._given
        found: dict[str, Any] | None = None
        async with (
            Owner(project.root, project.settings, project.environment, self._remark) as owner,
            telling(owner) as told,
        ):
            await self._show_panel(owner)
            runs = doors.owning(project, owner)
            runs.listeners.add(told)
            execution = self._execution = runs.execution(
                self._run_id,
                self._hear,
                person=await self._person(tasks),
                feedback=given.feedback,
                approve=given.approve,
                definition=given.definition,
                request=given.request,
                attached=given.request is None,
            )
            if self._received:  # while the owner was being made
                execution.interrupt(at_once=len(self._received) > 1)
            async with observing(runs):
                ending = await execution.execute()
            given.begun()  # where there was nothing to do
            if self._manner.json or self._manner.gives_answer:
                found = described(owner, self._run_id)
                found |= last_turn(owner.database, self._run_id, found["state"]) if self._manner.agent else {}
            if not self._received:  # else somebody wants us to be gone
                await keeping.remove_surplus(owner, spare=self._run_id, at_most=keeping.AT_MOST)
        return ending, found

    async def _obey(self, *, task_status: TaskStatus[None]) -> None:
        """The first Ctrl-C or SIGTERM ends the agents by the ladder, a second one at once."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup asked for that
            numbers.append(signal.SIGHUP)
        with anyio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            async for number in signals:
                self._received.append(number)
                if self._panel is not None and len(self._received) == 1:
                    self._remark("interrupted: the agents are being ended; Ctrl-C once more kills them")
                if self._execution is not None:
                    self._execution.interrupt(at_once=len(self._received) > 1)

    async def _show_panel(self, owner: Owner) -> None:
        if self._manner.shows_panel(self._project.environment):
            await self._outlet.shown()
            self._panel = showing.panel(owner.journal, self._run_id, keys=os.isatty(_TERMINAL))

    async def _person(self, tasks: TaskGroup) -> AskablePerson | None:
        """Whoever sits at the terminal, where there is one; the key `s` is heard there, too."""
        person: AskablePerson | None = None
        is_there = os.isatty(_TERMINAL)
        if is_there or self._panel is not None:
            session = TerminalSession(self._panel, self._toggle_stop if is_there else None, fd=_TERMINAL)
            await tasks.start(session.run)
            person = _InOrder(session, self._outlet) if is_there else None
        return _Answering(*self._given.answer, person) if self._given.answer is not None else person

    def _toggle_stop(self) -> None:
        if self._execution is not None and self._execution.execution is not None:
            self._execution.execution.board.toggle()

    def _teller(self) -> Callable[[RunEvent], None]:
        """Who is told what happens, where there is no panel."""
        if self._manner.json_events:
            return lambda event: self._outlet.write(event_as_json(event))
        if self._manner.json:
            return lambda _: None
        write = self._outlet.beside if self._manner.agent else self._outlet.write
        return PlainLines(write, quiet=self._manner.quiet).on_event

    def _hear(self, event: RunEvent) -> None:
        self._given.begun()
        tell = self._tell_event if self._panel is None else self._panel.on_event
        tell(event)

    def _remark(self, text: str) -> None:
        """Something that a person should know. Only the panel writes to a terminal that it is on."""
        if self._panel is None:
            self._outlet.remark(text)
        else:
            self._panel.on_event(RunEvent(self._run_id, kinds.WARNING, time.time(), {"text": text}))


class _InOrder:
    """A person who is asked when everything that was said before can be read."""

    def __init__(self, person: AskablePerson, outlet: Outlet) -> None:
        self._person = person
        self._outlet = outlet

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        await self._outlet.shown()
        return await self._person.ask(question, problem)

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        await self._outlet.shown()
        return await self._person.lend_terminal(run)


class _Answering:
    """Gives one answer, once, to the step that it is for; any other question goes to the terminal, if there is one."""

    def __init__(self, step: str, answer: Any, other: AskablePerson | None) -> None:
        self._step: str | None = step
        self._answer = answer
        self._other = other

    async def ask(self, question: dict[str, Any], problem: str | None) -> Any:
        if question.get("step") == self._step:
            self._step = None
            return self._answer
        return await self._other.ask(question, problem) if self._other is not None else None

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        return await self._other.lend_terminal(run) if self._other is not None else None


def described(owner: Owner, run_id: str) -> dict[str, Any]:
    """The run for programs: the object of `status`, with its state and its messages."""
    run = owner.journal.run(run_id)
    image = load(owner, run)
    try:
        state = image.states[()].state.flattened()
    finally:
        image.states.close()
    found = describe(owner.database, owner.root, run_id)
    return {**found, "state": state, "messages": messages(owner.database, run_id)}


def unused(*, feedback: str | None, answer: Any) -> str:
    """What is said of what came with a run that was not executed."""
    given = [name for name, value in (("answer", answer), ("feedback", feedback)) if value is not None]
    return f"; the {' and the '.join(given)} that came with it: not used" if given else ""


def _tell_end(outcome: Outcome, run_id: str, manner: Manner, outlet: Outlet, given: Given) -> None:
    """The result, and what can be done about it."""
    ending = outcome.ending
    # Whoever wrote the signal, or an agent, may have chosen the words.
    reason = f": {clean(ending.reason)}" if ending.reason and ending.reason != ending.status else ""
    if not ending.executed and ending.status != "completed":
        reason += " (nothing was executed" + unused(feedback=given.feedback, answer=given.answer) + ")"
    if outcome.described is not None and manner.gives_answer:
        if outcome.described.get("text"):
            outlet.write(f"{outcome.described['text']}\n")
    elif outcome.described is not None:
        indent = None if manner.json_events else 1
        outlet.write(as_json(outcome.described, indent=indent) + "\n")
    elif manner.quiet:
        outlet.write(f"{ending.status} {run_id}{reason}\n")
    if ending.status == "completed":
        if ending.reason and not manner.quiet and not manner.json:
            outlet.remark(f"run {run_id}{reason}")
        return
    command = f"sidecar resume {run_id}"
    if ending.limit is not None and ending.limit.startswith("max_"):  # of the workflow: it holds after a resume, too
        command += " --with-changes once the workflow allows more, or a new run"
    if ending.waits is not None:
        answer = f"sidecar answer {run_id} VALUE"
        command = answer if "prompt" in ending.waits else f"{command} --approve, or --feedback TEXT to send it back"
    outlet.remark(f"{ending.status}{reason}; to go on: {command}")
