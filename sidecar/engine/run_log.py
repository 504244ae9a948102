"""`run.log`: the events of a run for people, one line each; what agents print is in logs of their own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any

from sidecar import layout
from sidecar.agents.output import FORMER, MOST_BYTES, Secrets
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.text import one_line

NAME = "run.log"
_LONGEST_LINE = 2000


class RunLog:
    """The file, as the owner of the run writes it. A failure to write never fails the run: `problem` has the reason."""

    def __init__(self, root: str, run_id: str) -> None:
        self.problem: str | None = None
        self._file = -1
        self._size = 0
        self._path = os.path.join(layout.run_directory(root, run_id), NAME)
        self._open()

    def add(self, events: Sequence[RunEvent]) -> None:
        """Add the lines of events, of those that have one."""
        self.write(_lines(events))

    def write(self, lines: Iterable[str]) -> None:
        """Add lines as they are."""
        text = "\n".join(lines)
        if self._file < 0 or not text:
            return
        data = (text + "\n").encode("utf-8", "replace")
        try:
            # In one piece: a reader never sees half a line, as long as there is room on the disk.
            self._size += os.write(self._file, data)
            if self._size > MOST_BYTES:
                # A loop may run for weeks: one former file is kept, and older lines are lost.
                os.rename(self._path, self._path + FORMER)
                self.close()
                self._open()
        except OSError as error:
            self.problem = self.problem or str(error.strerror)

    def close(self) -> None:
        """Close the file; a second time does nothing."""
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


def keep_traceback(root: str, run_id: str, error: Exception, mask: Secrets) -> None:
    """Add a traceback. It is no event, so it has not been masked yet."""
    log = RunLog(root, run_id)
    log.write([mask.masked_text("".join(traceback.format_exception(error)).rstrip("\n"))])
    log.close()


def line(event: RunEvent) -> str | None:
    """The line of an event; None for a kind that has none."""
    return next(_lines([event]), None)


def _lines(events: Sequence[RunEvent]) -> Iterator[str]:
    texts = [_text(event, _LINES[event.kind]) for event in events if event.kind in _LINES]
    return map(one_line, texts, repeat(_LONGEST_LINE))


def _text(event: RunEvent, text_of: Callable[[_Data], str]) -> str:
    data, second = _Data(event.data), int(event.at)
    time = f"{_iso_second(second)}.{int((event.at - second) * 1000):03d}Z"
    return f"{time} {text_of(data)}{data.part(' (task {})', 'task')}"


@lru_cache(maxsize=1)  # to format it costs as much as the rest of a line
def _iso_second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()[:-6]


class _Data(dict[str, Any]):
    """The data of an event."""

    def __missing__(self, key: str) -> None:
        return None

    def part(self, text: str, key: str) -> str:
        """The text with a value in it; nothing where the event has no such value."""
        return text.format(self[key]) if self[key] else ""

    @property
    def error(self) -> str:
        error = self["error"]
        return str(error.get("message") or error) if isinstance(error, dict) else str(error)


def _run_ended(data: _Data) -> str:
    reason = "" if data["reason"] == data["status"] else data.part(": {}", "reason")
    return f"{data['status']}{reason}{data.part(' (limit: {})', 'limit')}"


def _step_started(data: _Data) -> str:
    attempt = data["attempt"] or 1
    return f"step {data['step']}: {data['type']}{f', attempt {attempt}' if attempt > 1 else ''}"


def _task_ended(data: _Data) -> str:
    if data["error"] is None:
        return "task done"
    return f"task failed{', will be retried' if data['will_retry'] else ''}: {data.error}"


def _agent_ended(data: _Data) -> str:
    reason = data["reason"]
    how = f"exited with {data['exit_code']}" if reason == "exited" else f"ended: {reason}, by {data['rung']}"
    survivors = data.part(", {} processes survived", "survivors")
    return f"{data['name']}: {how}, after {data['duration_s'] or 0:.1f} s{survivors}"


def _usage(data: _Data) -> str:
    cost = f"{data['cost_usd']:.4f} USD, " if data["cost_usd"] is not None else ""
    return f"step {data['step']}: {cost}{data['tokens'] or 0} tokens"


def _signal(data: _Data) -> str:
    if data["cancelled"]:
        return "signal cancelled"
    return f"{data['signal']} requested, by {data['source']}{data.part(' {}', 'path')}{data.part(': {}', 'reason')}"


_LINES: dict[str, Callable[[_Data], str]] = {
    kinds.RUN_STARTED: lambda data: f"started {data['workflow']}",
    kinds.RUN_RESUMED: lambda data: (
        f"resumed {data['workflow']} (was: {data['previous_status']})"
        f"{', with a changed workflow' if data['with_changes'] else ''}"
        f"{', approved' if data['approved'] else ''}{data.part(': {}', 'feedback')}"
    ),
    kinds.RUN_ENDED: _run_ended,
    kinds.STEP_STARTED: _step_started,
    kinds.STEP_COMPLETED: lambda data: f"step {data['step']}: done",
    kinds.STEP_FAILED: lambda data: f"step {data['step']}: failed: {data.error}",
    kinds.FAILURE_STEPS: lambda data: f"failure steps started: {data['handler']}",
    kinds.ITERATION: lambda data: f"{data['step']}: iteration {data['iteration']}{data.part(' of {}', 'of')}",
    kinds.TASK_STARTED: lambda data: "task started",
    kinds.TASK_ENDED: _task_ended,
    kinds.AGENT_STARTED: lambda data: f"{data['name']}: started, pid {data['pid']}, output in {data['log']}",
    kinds.AGENT_ENDED: _agent_ended,
    kinds.USAGE: _usage,
    kinds.WORKFLOW_RETRIED: lambda data: f"starting again from the first step, round {data['round']}",
    kinds.MESSAGE: lambda data: str(data["text"]),
    kinds.QUESTION: lambda data: f"waits for an answer: {data['prompt']}",
    kinds.ANSWERED: lambda data: f"step {data['step']}: answered",
    kinds.GATE: lambda data: f"waits for approval of {data['stage']}",
    kinds.REDIRECTED: lambda data: f"step {data['step']}: redirected: {data['text']}",
    kinds.FEEDBACK: lambda data: f"step {data['step']}: feedback: {data['text']}",
    kinds.CHECKPOINTED: lambda data: f"checkpoint{data.part(': {}', 'reason')}",
    kinds.STATE_UPDATED: lambda data: f"state updated by an agent{data.part(': {}', 'paths')}",
    kinds.SIGNAL: _signal,
    kinds.WARNING: lambda data: f"warning: {data['text']}",
}
