"""Run events as OpenTelemetry spans: a run, its steps and its agents, as OTLP has them in JSON.

Written by hand: it is one JSON object, and OpenTelemetry's own packages would bring a dozen others into a program that
most people run without any tracing. Spans carry names, numbers and states, never what a person or an agent wrote.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import sidecar
from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.model.events import RunEvent

    Json = dict[str, Any]

MOST_WAITING = 2048
_INTERNAL = 1  # SPAN_KIND_INTERNAL
_OK, _ERROR = 1, 2
_NS = 1_000_000_000
_AS_BASE_32 = str.maketrans(
    "0123456789ABCDEFGHJKMNPQRSTVWXYZ", "0123456789ABCDEFGHIJKLMNOPQRSTUV"
)  # as Python reads it
_GOOD, _BAD = ("completed", "stopped", "paused"), ("failed", "aborted", "interrupted")


class Spans:
    """Spans of the runs of one project: those that are open, and those that are over and wait to be sent."""

    def __init__(self, project: str, machine: str) -> None:
        self._resource = _attributes(
            {
                "service.name": "sidecar",
                "service.version": sidecar.__version__,
                "host.name": machine,
                "sidecar.project": project,
            }
        )
        self._open: dict[tuple[str, str], Json] = {}  # by run, and what it is: "", `step KEY`, `task ID`, `agent ID`
        self._over: list[Json] = []
        self.left_out = 0  # since somebody last took some

    def hear(self, event: RunEvent) -> None:
        """Begin or end the span that the event is about; never fails, never waits."""
        tell = _HEARD.get(event.kind)
        if tell is not None:
            tell(self, event)

    def take(self) -> Json | None:
        """What is over, as the body of a request; None where nothing is."""
        if not self._over:
            return None
        spans, self._over, self.left_out = self._over, [], 0
        scope = {"name": "sidecar", "version": sidecar.__version__}
        return {
            "resourceSpans": [
                {"resource": {"attributes": self._resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}
            ]
        }

    # --- events

    def _run_begun(self, event: RunEvent) -> None:
        resumed = event.kind == kinds.RUN_RESUMED
        was = event.data.get("previous_status")
        told = {"sidecar.run_id": event.run_id, "sidecar.resumed": resumed, "sidecar.was": was}
        self._begin(event, "", f"run {event.data.get('workflow')}", None, told)

    def _run_ended(self, event: RunEvent) -> None:
        status = event.data.get("status")
        # What was under way ends with the run; nobody will tell of it any more.
        for run_id, what in [key for key in self._open if key[0] == event.run_id and key[1]]:
            self._end(run_id, what, event.at, None, {"sidecar.cut_off": True})
        code = _OK if status in _GOOD else _ERROR if status in _BAD else None
        told = {"sidecar.status": status, "sidecar.limit": event.data.get("limit")}
        self._end(event.run_id, "", event.at, code, told)

    def _step_started(self, event: RunEvent) -> None:
        data = event.data
        told = {f"sidecar.{name}": data.get(name) for name in ("step", "type", "task", "attempt")}
        within = f"task {data['task']}" if data.get("task") else ""
        self._begin(event, f"step {data.get('step')}", f"{data.get('type')} {data.get('id')}", within, told)

    def _step_ended(self, event: RunEvent) -> None:
        code = _OK if event.kind == kinds.STEP_COMPLETED else _ERROR
        self._end(event.run_id, f"step {event.data.get('step')}", event.at, code, {})

    def _task_started(self, event: RunEvent) -> None:
        data = event.data
        told = {"sidecar.task": data.get("task"), "sidecar.index": data.get("index")}
        self._begin(event, f"task {data.get('task')}", f"task {data.get('task')}", f"step {data.get('step')}", told)

    def _task_ended(self, event: RunEvent) -> None:
        code = _ERROR if event.data.get("error") else _OK
        self._end(event.run_id, f"task {event.data.get('task')}", event.at, code, {})

    def _agent_started(self, event: RunEvent) -> None:
        data = event.data
        told = {"sidecar.agent": data.get("name"), "process.pid": data.get("pid")}
        what, within = f"agent {data.get('agent_id')}", f"step {data.get('step')}"
        self._begin(event, what, f"agent {data.get('name')}", within, told)

    def _agent_ended(self, event: RunEvent) -> None:
        data = event.data
        told = {f"sidecar.{name}": data.get(name) for name in ("reason", "rung", "exit_code", "survivors")}
        code = _OK if data.get("reason") == "exited" and data.get("exit_code") == 0 else _ERROR
        self._end(event.run_id, f"agent {data.get('agent_id')}", event.at, code, told)

    # --- spans

    def _begin(self, event: RunEvent, what: str, name: str, within: str | None, told: Json) -> None:
        span = {
            "traceId": trace_id(event.run_id),
            "spanId": os.urandom(8).hex(),
            "name": name,
            "kind": _INTERNAL,
            "startTimeUnixNano": str(int(event.at * _NS)),
            "attributes": _attributes(told),
        }
        parent = None
        if within is not None:  # what is around it may have begun before anybody listened: then it belongs to the run
            parent = self._open.get((event.run_id, within)) or self._open.get((event.run_id, ""))
        if parent is not None:
            span["parentSpanId"] = parent["spanId"]
        self._open[event.run_id, what] = span

    def _end(self, run_id: str, what: str, at: float, code: int | None, told: Json) -> None:
        span = self._open.pop((run_id, what), None)
        if span is None:
            return
        span["endTimeUnixNano"] = str(int(at * _NS))
        span["attributes"] += _attributes(told)
        if code is not None:
            span["status"] = {"code": code}
        if len(self._over) < MOST_WAITING:
            self._over.append(span)
        else:
            self.left_out += 1


def trace_id(run_id: str) -> str:
    """The trace of a run, the same for every owner that it ever has: a ULID has as many bits."""
    return f"{int(run_id.translate(_AS_BASE_32), 32):032x}"


def _attributes(values: Json) -> list[Json]:
    return [{"key": key, "value": _value(value)} for key, value in values.items() if value is not None]


def _value(value: object) -> Json:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}


_HEARD: dict[str, Callable[[Spans, RunEvent], None]] = {
    kinds.RUN_STARTED: Spans._run_begun,
    kinds.RUN_RESUMED: Spans._run_begun,
    kinds.RUN_ENDED: Spans._run_ended,
    kinds.STEP_STARTED: Spans._step_started,
    kinds.STEP_COMPLETED: Spans._step_ended,
    kinds.STEP_FAILED: Spans._step_ended,
    kinds.TASK_STARTED: Spans._task_started,
    kinds.TASK_ENDED: Spans._task_ended,
    kinds.AGENT_STARTED: Spans._agent_started,
    kinds.AGENT_ENDED: Spans._agent_ended,
}
