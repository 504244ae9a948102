"""Sends the progress of a run to an MCP client: a few events that matter, from 0 to 100, with heartbeats in between.

A task of the request sends them from a short queue that drops the oldest: a client that reads slowly, or not at all,
gets less, and no run waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from sidecar.model import events as kinds
from sidecar.model.events import RunEvent

Json = dict[str, Any]
HEARTBEAT_S = 8.0  # the contract says 10: this leaves room for a busy machine
_QUEUE_LENGTH = 32
_ALMOST = 99.0  # 100 is for the flow's end
_FLUSH_S = 1.0
_MARKS = "[.~#"  # what a step's key has behind the id: iteration, task, try


@dataclass(frozen=True, slots=True)
class ProgressNote:
    """What is sent to a client about an event of its run."""

    kind: str
    progress: float
    message: str
    metadata: Json
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedSteps:
    """A run as it is known before it starts; `states`: its top-level steps with their descriptions."""

    name: str
    parameters: Json
    states: dict[str, str]


class RunProgress:
    """Turns a run's events into notes. It outlives a request: a run that asks a question spans several."""

    def __init__(self, plan: ExpectedSteps) -> None:
        self._plan = plan
        self._order = {state: index for index, state in enumerate(plan.states)}
        self._state: str | None = None
        self.progress = 0.0
        self.run_id: str | None = None

    def notes(self, event: RunEvent) -> list[ProgressNote]:
        """The notes about an event: often none."""
        self.run_id = event.run_id
        if event.kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED):
            first = next(iter(self._plan.states), None)
            data = {"parameters": self._plan.parameters, "initial_state": first}
            word = "Starting" if event.kind == kinds.RUN_STARTED else "Resuming"
            return [self._note("flow_start", 0.0, f"{word} workflow: {self._plan.name}", data)]
        if event.kind == kinds.RUN_ENDED:
            return self._ended(event.data)
        if event.kind in (kinds.STEP_STARTED, kinds.STEP_COMPLETED) and isinstance(event.data.get("step"), str):
            return self._stepped(event.kind, event.data["step"])
        return []

    def heartbeat(self, silent_for_s: float) -> ProgressNote:
        """The note that is sent where there was no other for a while."""
        where = f" in state: {self._state}" if self._state else ""
        message = f"Running workflow: {self._plan.name}{where} ({silent_for_s:.0f} s)"
        return self._note("heartbeat", self.progress, message, {"state_id": self._state})

    def _stepped(self, kind: str, key: str) -> list[ProgressNote]:
        state = self._state_of(key)
        known = self._order
        if self._state in known and state in known and known[state] < known[self._state]:
            return []  # still running in the background after its step has ended
        notes = []
        if state != self._state:
            if self._state is not None:
                notes.append(self._completed(self._state, state))
            self._state = state
            data = {"state_id": state, "state_description": self._plan.states.get(state, "")}
            notes.append(self._note("state_start", self._share(state, 0), f"Entering state: {state}", data))
        if kind == kinds.STEP_COMPLETED and key == state:
            following = list(known)[known[state] + 1 : known[state] + 2] if state in known else []
            notes.append(self._completed(state, following[0] if following else None))
            self._state = None
        return notes

    def _completed(self, state: str, following: str | None) -> ProgressNote:
        data = {"state_id": state, "next_state": following}
        return self._note("state_complete", self._share(state, 1), f"Completed state: {state}", data)

    def _ended(self, end: Json) -> list[ProgressNote]:
        name, status = self._plan.name, str(end.get("status"))
        last, self._state = self._state, None
        if status in ("failed", "aborted", "interrupted"):
            reason = str(end.get("reason") or "")
            data = {"status": status, "error_state": last, "error": reason}
            message = f"Workflow {status}: {name}" + (f": {reason}" if reason else "")
            return [self._note("flow_error", self.progress, message, data, failed=True)]
        is_complete = status == "completed"
        notes = [self._completed(last, None)] if last and is_complete else []
        progress = 100.0 if is_complete else self.progress
        message = f"Completed workflow: {name}" if is_complete else f"Workflow {status}: {name}"
        data = {"status": status, "final_state": last or next(reversed(self._plan.states), None)}
        return [*notes, self._note("flow_complete", progress, message, data)]

    def _note(self, kind: str, progress: float, message: str, data: Json, *, failed: bool = False) -> ProgressNote:
        self.progress = max(self.progress, progress)
        metadata = {"event": kind, "flow_name": self._plan.name, "run_id": self.run_id, **data}
        return ProgressNote(kind, self.progress, message, metadata, failed)

    def _share(self, state: str, done: int) -> float:
        """The progress at the start or end of a state. One that was not expected makes a tenth of what remains."""
        if state in self._order:
            return min(100.0 * (self._order[state] + done) / len(self._order), _ALMOST)
        return min(self.progress + (_ALMOST - self.progress) * 0.1, _ALMOST)

    def _state_of(self, key: str) -> str:
        word = key.split("/", 1)[0]
        if word in self._order:
            return word
        shorter = [word[:at] for at, character in enumerate(word) if character in _MARKS]
        return next((start for start in reversed(shorter) if start in self._order), word.split("[", 1)[0])


class ProgressSender:
    """Sends a run's notes to the client, within one request, by each of `sends`."""

    def __init__(
        self,
        progress: RunProgress,
        sends: Sequence[Callable[[ProgressNote], Awaitable[None]]],
        *,
        quiet: bool = False,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._progress = progress
        self._sends = sends
        self._quiet = quiet
        self._heartbeat_s = heartbeat_s
        self._queue: deque[ProgressNote] = deque(maxlen=_QUEUE_LENGTH)
        self._added = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()

    def add(self, notes: list[ProgressNote]) -> None:
        """Queue notes. Returns at once, whatever the client does."""
        if notes and not self._quiet:
            self._queue.extend(notes)
            if self._idle.is_set():
                self._idle = anyio.Event()
            self._added.set()

    async def run(self) -> None:
        """Send until cancelled."""
        began = time.monotonic()
        while True:
            with anyio.move_on_after(self._heartbeat_s) as silence:
                await self._added.wait()
            self._added = anyio.Event()
            # Notes that were added while others were sent went with them: that is no silence.
            if silence.cancelled_caught and not self._queue:
                await self._send(self._progress.heartbeat(time.monotonic() - began))
            while self._queue:
                await self._send(self._queue.popleft())
            self._idle.set()

    async def flush(self) -> None:
        """Wait until all is sent, but not for a client that does not read."""
        with anyio.move_on_after(_FLUSH_S):
            await self._idle.wait()

    async def _send(self, note: ProgressNote) -> None:
        for send in self._sends:
            await send(note)
