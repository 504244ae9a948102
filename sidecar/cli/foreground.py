"""Executes a run in this terminal: shown as it goes on, interrupted by Ctrl-C, its end printed and an exit code."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sidecar import layout
from sidecar.display.lines import PlainLines
from sidecar.display.panel import Panel
from sidecar.display.person import TerminalSession
from sidecar.display.progress import Progress
from sidecar.display.terminal import can_show_panel
from sidecar.errors import SidecarError, UnwrappedErrors
from sidecar.mcp_server import endpoints
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.notify.notices import notifications
from sidecar.notify.telemetry import observed
from sidecar.service import keeping, workspaces
from sidecar.service.owners import StartOptions, open_owner
from sidecar.service.runs import run_result
from sidecar.service.status import as_json, event_as_json
from sidecar.text import clean

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup, TaskStatus

    from sidecar.config import Project
    from sidecar.service.owners import AskablePerson, Ending, Owner, ServerDriven

OK, FAILED, LIMIT = 0, 2, 3
_SIGNALLED = 128  # and the number of the signal
CODES = {"completed": OK, "stopped": OK, "paused": OK, "failed": FAILED, "aborted": FAILED, "interrupted": FAILED}
_TERMINAL, _SCREEN = 0, 1
_MOST_WAITING = 100_000
_LOOK_S = 0.005
_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class OutputMode:
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
        return self.panel and not (self.quiet or self.json or self.json_events) and can_show_panel(_SCREEN, environment)


@dataclass(frozen=True, slots=True)
class _Result:
    """How it ended, the object of `--json`, and which of Ctrl-C and SIGTERM ended it."""

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


def execute(
    project: Project,
    run_id: str,
    mode: OutputMode,
    options: StartOptions | None = None,
    *,
    request: str | None = None,
    on_started: Callable[[], None] = lambda: None,
) -> int:
    """Execute a run from where it stands to its next end; the exit code. `request`: under which it was given to this
    process; without one it belongs to this terminal. `on_started` is called when the run is ours, and running."""
    given = options or StartOptions()
    writer = OutputWriter()
    foreground = _Foreground(project, run_id, mode, writer, options=given, request=request, on_started=on_started)
    try:
        result = anyio.run(foreground.run)
        _print_end(result, run_id, mode, writer, given)
    finally:
        writer.close()
    if writer.lost and (mode.json or mode.gives_answer):
        again = f"; to read it: sidecar resume {run_id} --json" if result.ending.status == "completed" else ""
        raise SidecarError(f"{result.ending.status}, but the result cannot be written: {writer.lost}{again}")
    return result.code


class _Foreground:
    """One start of a run in this process."""

    def __init__(
        self,
        project: Project,
        run_id: str,
        mode: OutputMode,
        writer: OutputWriter,
        *,
        options: StartOptions,
        request: str | None,
        on_started: Callable[[], None],
    ) -> None:
        self._project = project
        self._run_id = run_id
        self._mode = mode
        self._options = options
        self._writer = writer
        self._request = request
        self._on_started = on_started
        self._panel: Panel | None = None
        self._show_event = self._shower()
        self._execution: ServerDriven | None = None
        self._received: list[int] = []

    async def run(self) -> _Result:
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
        return _Result(*ended, self._received[0] if self._received else None)

    async def _owned(self, tasks: TaskGroup) -> tuple[Ending, dict[str, Any] | None]:
        found: dict[str, Any] | None = None
        async with open_owner(self._project, self._remark) as owner, notifications(owner) as on_event:
            await self._show_panel(owner)
            runs = endpoints.local_runs(self._project, owner)
            runs.listeners.add(on_event)
            execution = self._execution = runs.execution(
                self._run_id,
                self._on_event,
                self._options,
                person=await self._person(tasks),
                request=self._request,
                attached=self._request is None,
            )
            if self._received:  # while the owner was being made
                execution.interrupt(at_once=len(self._received) > 1)
            async with observed(runs):
                ending = await execution.execute()
            self._on_started()  # where there was nothing to do
            if self._mode.json or self._mode.gives_answer:
                found = run_result(owner, self._run_id, with_turn=self._mode.agent)
            if not self._received:  # else somebody wants us to be gone
                await keeping.remove_surplus(owner, except_run=self._run_id, at_most=keeping.AT_MOST)
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
        if self._mode.shows_panel(self._project.environment):
            await self._writer.shown()
            self._panel = _panel(owner, self._run_id, keys=os.isatty(_TERMINAL))

    async def _person(self, tasks: TaskGroup) -> AskablePerson | None:
        """Whoever sits at the terminal, where there is one; the key `s` is heard there, too."""
        is_there = os.isatty(_TERMINAL)
        if not is_there and self._panel is None:
            return None
        session = TerminalSession(self._panel, self._toggle_stop if is_there else None, fd=_TERMINAL)
        await tasks.start(session.run)
        return _InOrder(session, self._writer) if is_there else None

    def _toggle_stop(self) -> None:
        if self._execution is not None and self._execution.execution is not None:
            self._execution.execution.board.toggle()

    def _shower(self) -> Callable[[RunEvent], None]:
        """Who is told what happens, where there is no panel."""
        if self._mode.json_events:
            return lambda event: self._writer.write(event_as_json(event))
        if self._mode.json:
            return lambda _: None
        write = self._writer.beside if self._mode.agent else self._writer.write
        return PlainLines(write, quiet=self._mode.quiet).on_event

    def _on_event(self, event: RunEvent) -> None:
        self._on_started()
        show = self._show_event if self._panel is None else self._panel.on_event
        show(event)

    def _remark(self, text: str) -> None:
        """Something that a person should know. Only the panel writes to a terminal that it is on."""
        if self._panel is None:
            self._writer.remark(text)
        else:
            self._panel.on_event(RunEvent(self._run_id, kinds.WARNING, time.time(), {"text": text}))


class _InOrder:
    """A person who is asked when everything that was said before can be read."""

    def __init__(self, person: AskablePerson, writer: OutputWriter) -> None:
        self._person = person
        self._writer = writer

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        await self._writer.shown()
        return await self._person.ask(question, problem)

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        await self._writer.shown()
        return await self._person.lend_terminal(run)


def unused(options: StartOptions | None) -> str:
    """What is said of what came with a run that was not executed."""
    came = (("answer", options.answer), ("feedback", options.feedback)) if options is not None else ()
    names = [name for name, value in came if value is not None]
    return f"; the {' and the '.join(names)} that came with it: not used" if names else ""


def _print_end(result: _Result, run_id: str, mode: OutputMode, writer: OutputWriter, options: StartOptions) -> None:
    """The result, and what can be done about it."""
    ending = result.ending
    # Whoever wrote the signal, or an agent, may have chosen the words.
    reason = f": {clean(ending.reason)}" if ending.reason and ending.reason != ending.status else ""
    if not ending.executed and ending.status != "completed":
        reason += " (nothing was executed" + unused(options) + ")"
    if result.described is not None and mode.gives_answer:
        if result.described.get("text"):
            writer.write(f"{result.described['text']}\n")
    elif result.described is not None:
        indent = None if mode.json_events else 1
        writer.write(as_json(result.described, indent=indent) + "\n")
    elif mode.quiet:
        writer.write(f"{ending.status} {run_id}{reason}\n")
    if ending.status == "completed":
        if ending.reason and not mode.quiet and not mode.json:
            writer.remark(f"run {run_id}{reason}")
        return
    command = f"sidecar resume {run_id}"
    if ending.limit is not None and ending.limit.startswith("max_"):  # of the workflow: it holds after a resume, too
        command += " --with-changes once the workflow allows more, or a new run"
    if ending.waits is not None:
        answer = f"sidecar answer {run_id} VALUE"
        command = answer if "prompt" in ending.waits else f"{command} --approve, or --feedback TEXT to send it back"
    writer.remark(f"{ending.status}{reason}; to continue: {command}")


def _panel(owner: Owner, run_id: str, *, keys: bool) -> Panel:
    """The panel of a run. `keys`: whether the key `s` is read."""
    run = owner.journal.run(run_id)
    progress = Progress(
        workflow=run.workflow, workspace=os.path.basename(run.workspace or ""), mode=workspaces.mode(run) or ""
    )
    if run.start:  # what it took and cost before counts; what it said then was read then
        for event in owner.journal.events(run_id):
            progress.on_event(event.run_event)
        progress.messages.clear()
    return Panel(progress, keys=keys)


class OutputWriter:
    """Writes to standard output and standard error, in order, in a thread of its own: a reader that is slow or has gone
    never holds up a run. Where nobody reads, texts are dropped."""

    def __init__(self) -> None:
        self._texts: queue.Queue[tuple[int, str] | None] = queue.Queue()
        self._encodings = {1: sys.stdout.encoding or "utf-8", 2: sys.stderr.encoding or "utf-8"}
        self._gone: dict[int, str] = {}  # those that nobody can read, and why
        self._dropped = 0
        # Not awaited by the interpreter's end: what nobody reads must not keep us.
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        sys.stdout.flush()
        self._thread.start()

    @property
    def lost(self) -> str | None:
        """Why nobody can read standard output any more."""
        return self._gone.get(1)

    def write(self, text: str) -> None:
        """To standard output."""
        self._put(1, text)

    def beside(self, text: str) -> None:
        """To standard error."""
        self._put(2, text)

    def remark(self, text: str) -> None:
        """A line to standard error, marked as ours."""
        self._put(2, f"sidecar: {text}\n")

    async def shown(self) -> None:
        """Wait until all of it is out, but not for long."""
        with anyio.move_on_after(_WAIT_S):
            while self._texts.unfinished_tasks:  # noqa: ASYNC110 - a thread cannot set an event of the loop
                await anyio.sleep(_LOOK_S)

    def close(self) -> None:
        """Wait until all of it is out: by now nothing is held up by that."""
        if self._dropped:
            self.remark(f"{self._dropped} lines were not shown: the reader was too slow")
        self._texts.put(None)
        self._thread.join()

    def _put(self, descriptor: int, text: str) -> None:
        if self._texts.qsize() >= _MOST_WAITING:
            self._dropped += 1
        else:
            self._texts.put((descriptor, text))

    def _write_all(self) -> None:
        while (entry := self._texts.get()) is not None:
            descriptor, text = entry
            if descriptor not in self._gone:
                self._write(descriptor, text)
            self._texts.task_done()
        self._texts.task_done()

    def _write(self, descriptor: int, text: str) -> None:
        left = memoryview(text.encode(self._encodings[descriptor], "backslashreplace"))
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError as error:  # a pipe without a reader, a full disk, a terminal that hung up
            self._gone[descriptor] = error.strerror or str(error)
