"""A run's events as a client hears them: a few that matter, 0 to 100 and never back, and a sign of life in between.

The run only leaves its events here. They are sent by a task of the request, from a short queue that forgets what
nobody has fetched: a client that reads slowly, or not at all, hears less, and no run waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from sidecar.model import events as kinds
from sidecar.model.events import RunEvent

Json = dict[str, Any]
HEARTBEAT_S = 8.0  # the contract says 10: this leaves room for a busy machine
_MOST_WAITING = 32
_ALMOST = 99.0  # 100 is for the flow's end
_FLUSH_S = 1.0
_MARKS = "[.~#"  # what a step's key has behind the id: iteration, task, try


@dataclass(frozen=True, slots=True)
class ProgressNote:
    """One thing to tell a client."""

    kind: str
    progress: float
    message: str
    metadata: Json
    failed: bool = False


@dataclass(frozen=True, slots=True)
class ExpectedSteps:
    """What is known of a run before it begins; `states` are its top-level steps with their descriptions."""

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
        """What to tell of an event: often nothing."""
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
        """A sign of life."""
        where = f" in state: {self._state}" if self._state else ""
        message = f"Running workflow: {self._plan.name}{where} ({silent_for_s:.0f} s)"
        return self._note("heartbeat", self.progress, message, {"state_id": self._state})

    def _stepped(self, kind: str, key: str) -> list[ProgressNote]:
        state = self._state_of(key)
        known = self._order
        if self._state in known and state in known and known[state] < known[self._state]:
            return []  # left running in the background by a step that is over
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

    def _ended(self, data: Json) -> list[ProgressNote]:
        name, status = self._plan.name, str(data.get("status"))
        last, self._state = self._state, None
        if status in ("failed", "aborted", "interrupted"):
            reason = str(data.get("reason") or "")
            told = {"status": status, "error_state": last, "error": reason}
            message = f"Workflow {status}: {name}" + (f": {reason}" if reason else "")
            return [self._note("flow_error", self.progress, message, told, failed=True)]
        notes = [self._completed(last, None)] if last and status == "completed" else []
        final = last or next(reversed(self._plan.states), None)
        if status == "completed":
            return [*notes, self._note("flow_complete", 100.0, f"Completed workflow: {name}", _end(status, final))]
        return [*notes, self._note("flow_complete", self.progress, f"Workflow {status}: {name}", _end(status, final))]

    def _note(self, kind: str, progress: float, message: str, data: Json, *, failed: bool = False) -> ProgressNote:
        self.progress = max(self.progress, progress)
        metadata = {"event": kind, "flow_name": self._plan.name, "run_id": self.run_id, **data}
        return ProgressNote(kind, self.progress, message, metadata, failed)

    def _share(self, state: str, done: int) -> float:
        """How far along a run is at the begin or end of a state. Where nobody knows the states, ever closer to all."""
        if state in self._order:
            return min(100.0 * (self._order[state] + done) / len(self._order), _ALMOST)
        return min(self.progress + (_ALMOST - self.progress) * 0.1, _ALMOST)

    def _state_of(self, key: str) -> str:
        word = key.split("/", 1)[0]
        if word in self._order:
            return word
        shorter = [word[:at] for at, character in enumerate(word) if character in _MARKS]
        return next((start for start in reversed(shorter) if start in self._order), word.split("[", 1)[0])


def _end(status: str, final: str | None) -> Json:
    return {"status": status, "final_state": final}


Send = Callable[[ProgressNote], Awaitable[None]]


class Sender:
    """Sends what was noted, in the scope of one request."""

    def __init__(
        self, progress: RunProgress, send: Send, *, quiet: bool = False, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._progress = progress
        self._send = send
        self._quiet = quiet
        self._heartbeat_s = heartbeat_s
        self._waiting: deque[ProgressNote] = deque(maxlen=_MOST_WAITING)
        self._news = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()

    def send_soon(self, notes: list[ProgressNote]) -> None:
        """Take notes. Returns at once, whatever the client does."""
        if notes and not self._quiet:
            self._waiting.extend(notes)
            if self._idle.is_set():
                self._idle = anyio.Event()
            self._news.set()

    async def run(self) -> None:
        """Send until cancelled."""
        began = time.monotonic()
        while True:
            with anyio.move_on_after(self._heartbeat_s) as silence:
                await self._news.wait()
            self._news = anyio.Event()
            # News that came while others were sent went with them: that is no silence.
            if silence.cancelled_caught and not self._waiting:
                await self._send(self._progress.heartbeat(time.monotonic() - began))
            while self._waiting:
                await self._send(self._waiting.popleft())
            self._idle.set()

    async def flush(self) -> None:
        """Wait until all is sent, but not for a client that does not read."""
        with anyio.move_on_after(_FLUSH_S):
            await self._idle.wait()


def sending(*ways: Callable[[ProgressNote], Awaitable[Any]] | None) -> Send | None:
    """All the ways by which a client wants to hear, as one; None where it wants to hear nothing."""
    wanted = [way for way in ways if way is not None]
    if not wanted:
        return None

    async def send(note: ProgressNote) -> None:
        for way in wanted:
            await way(note)

    return send
