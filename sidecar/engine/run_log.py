"""`run.log`: what happened in a run, one line an event, for people; what agents print is in the logs of their own."""

from __future__ import annotations

import os
import traceback
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.agents import log_file
from sidecar.model import events as kinds
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.mask import Secrets
    from sidecar.model.events import RunEvent


NAME = "run.log"
FORMER = log_file.FORMER
MOST_BYTES = log_file.MOST_BYTES
_LONGEST = 2000


class RunLog:
    """The file, as its owner writes it. A log that cannot be written never fails a run: `problem` says why."""

    def __init__(self, root: str, run_id: str) -> None:
        self.problem: str | None = None
        self._file = -1
        self._size = 0
        self._path = os.path.join(layout.run_directory(root, run_id), NAME)
        self._open()

    def on_event(self, event: RunEvent) -> None:
        """Add the line of an event, where it has one."""
        told = line(event)
        if told is not None:
            self.write(told)

    def write(self, text: str) -> None:
        """Add lines as they are."""
        if self._file < 0:
            return
        data = (text + "\n").encode("utf-8", "replace")
        try:
            # In one piece: who follows the file never sees half a line, as long as there is room on the disk.
            self._size += os.write(self._file, data)
            if self._size > MOST_BYTES:
                self._turn()
        except OSError as error:
            self.problem = self.problem or str(error.strerror)

    def close(self) -> None:
        """A second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        try:
            # Not blocking, and no link: an agent may have put something else there.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            self._size = os.fstat(self._file).st_size
        except OSError as error:
            self.problem = f"cannot write {self._path}: {error.strerror}"

    def _turn(self) -> None:
        """A loop may go on for weeks: what is older than the last so many bytes goes, the newest stay readable."""
        os.rename(self._path, self._path + FORMER)
        self.close()
        self._open()


def keep_traceback(root: str, run_id: str, error: Exception, mask: Secrets) -> None:
    """Add a traceback, whoever drives the run. It is no event, so nobody has masked what stands in it."""
    log = RunLog(root, run_id)
    log.write(mask.masked_text("".join(traceback.format_exception(error)).rstrip("\n")))
    log.close()


def line(event: RunEvent) -> str | None:
    """An event in words, behind its time; None for what no log needs."""
    tell = _WORDS.get(event.kind)
    if tell is None:
        return None
    task = event.data.get("task")
    return one_line(f"{_time(event.at)} {tell(event.data)}{f' (task {task})' if task else ''}", _LONGEST)


def _time(at: float) -> str:
    second = int(at)
    return f"{_second(second)}.{int((at - second) * 1000):03d}Z"


@lru_cache(maxsize=1)  # to write it costs as much as the rest of a line
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:-6]


def _resumed(data: dict[str, Any]) -> str:
    changed = ", with a changed workflow" if data.get("with_changes") else ""
    said = f": {data['feedback']}" if data.get("feedback") else ""
    approved = ", approved" if data.get("approved") else ""
    return f"resumed {data.get('workflow')}, which was {data.get('previous_status')}{changed}{approved}{said}"


def _ended(data: dict[str, Any]) -> str:
    limit = f" (limit: {data['limit']})" if data.get("limit") else ""
    reason = data.get("reason") if data.get("reason") != data.get("status") else None
    return f"{data.get('status')}{_behind(reason)}{limit}"


def _step_started(data: dict[str, Any]) -> str:
    attempt = data.get("attempt") or 1
    return f"step {data.get('step')}: {data.get('type')}{f', attempt {attempt}' if attempt > 1 else ''}"


def _iteration(data: dict[str, Any]) -> str:
    of = f" of {data['of']}" if data.get("of") else ""
    return f"{data.get('step')}: iteration {data.get('iteration')}{of}"


def _task_ended(data: dict[str, Any]) -> str:
    if data.get("error") is None:
        return "task done"
    return f"task failed{', is tried again' if data.get('will_retry') else ''}: {_message(data['error'])}"


def _agent_started(data: dict[str, Any]) -> str:
    log = f", output in {data['log']}" if data.get("log") else ""
    return f"{data.get('name')}: started, pid {data.get('pid')}{log}"


def _agent_ended(data: dict[str, Any]) -> str:
    reason = data.get("reason")
    how = f"exited with {data.get('exit_code')}" if reason == "exited" else f"ended: {reason}, by {data.get('rung')}"
    left = f", {data['survivors']} processes survived" if data.get("survivors") else ""
    return f"{data.get('name')}: {how}, after {data.get('duration_s') or 0:.1f} s{left}"


def _spent(data: dict[str, Any]) -> str:
    cost = f"{data['cost_usd']:.4f} USD, " if data.get("cost_usd") is not None else ""
    return f"step {data.get('step')}: {cost}{data.get('tokens') or 0} tokens"


def _signal(data: dict[str, Any]) -> str:
    if data.get("cancelled"):
        return "the signal was taken back"
    path = f" {data['path']}" if data.get("path") else ""
    return f"{data.get('signal')} requested, by {data.get('source')}{path}{_behind(data.get('reason'))}"


def _behind(text: object) -> str:
    return f": {text}" if text else ""


def _message(error: object) -> str:
    return str(error.get("message") or error) if isinstance(error, dict) else str(error)


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    kinds.RUN_STARTED: lambda data: f"started {data.get('workflow')}",
    kinds.RUN_RESUMED: _resumed,
    kinds.RUN_ENDED: _ended,
    kinds.STEP_STARTED: _step_started,
    kinds.STEP_COMPLETED: lambda data: f"step {data.get('step')}: done",
    kinds.STEP_FAILED: lambda data: f"step {data.get('step')}: failed: {_message(data.get('error'))}",
    kinds.FAILURE_STEPS: lambda data: f"steps for a failure begin: {data.get('handler')}",
    kinds.ITERATION: _iteration,
    kinds.TASK_STARTED: lambda data: "task begins",
    kinds.TASK_ENDED: _task_ended,
    kinds.AGENT_STARTED: lambda data: (
        f"{data.get('name')}: started, pid {data.get('pid')}, output in {data.get('log')}"
    ),
    kinds.AGENT_ENDED: _agent_ended,
    kinds.USAGE: _spent,
    kinds.WORKFLOW_RETRIED: lambda data: f"from the start again, round {data.get('round')}",
    kinds.MESSAGE: lambda data: str(data.get("text")),
    kinds.QUESTION: lambda data: f"waits for an answer: {data.get('prompt')}",
    kinds.ANSWERED: lambda data: f"step {data.get('step')}: answered",
    kinds.GATE: lambda data: f"waits for approval of {data.get('stage')}",
    kinds.REDIRECTED: lambda data: f"step {data.get('step')}: redirected: {data.get('text')}",
    kinds.FEEDBACK: lambda data: f"step {data.get('step')}: is told: {data.get('text')}",
    kinds.CHECKPOINTED: lambda data: f"checkpoint{_behind(data.get('reason'))}",
    kinds.STATE_UPDATED: lambda data: f"state updated by an agent{_behind(data.get('paths'))}",
    kinds.SIGNAL: _signal,
    kinds.WARNING: lambda data: f"warning: {data.get('text')}",
}
