"""Run events as OpenTelemetry spans: a run, its tasks, steps and agents, sent by OTLP over HTTP as `OTEL_*` have it.

Imported only where `otlp_endpoint` is set. Spans carry names, numbers and states, never what a person or agent wrote.
They go out in batches, beside the run: a collector that is slow or away costs spans, and never anything else.
"""

from __future__ import annotations

import logging
import platform
import threading
from typing import TYPE_CHECKING, Any

import anyio
from anyio import from_thread, lowlevel
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context

import sidecar
from sidecar.errors import SidecarError
from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from sidecar.engine.owner import Owner
    from sidecar.model.events import RunEvent

_PATH = "/v1/traces"
_AT_THE_END_S = 2.0
_NS = 1_000_000_000
_AS_BASE_32 = str.maketrans(
    "0123456789ABCDEFGHJKMNPQRSTVWXYZ", "0123456789ABCDEFGHIJKLMNOPQRSTUV"
)  # as Python reads it
_GOOD, _BAD = ("completed", "stopped", "paused"), ("failed", "aborted", "interrupted")
_log = logging.getLogger("opentelemetry")
_log.propagate = False  # its warnings and tracebacks; the owner reports what is wrong, in one line
_log.addHandler(logging.NullHandler())


class Spans:
    """The spans of an owner's runs: those that are open are kept here, the rest by OpenTelemetry's batch processor."""

    def __init__(self, owner: Owner) -> None:
        """SidecarError: a variable that a setting names is not set."""
        settings, environment = owner.settings, owner.environment
        endpoint = _expanded(settings.otlp_endpoint or "", environment).rstrip("/") + _PATH
        headers = {name: _expanded(value, environment) for name, value in settings.otlp_headers.items()}
        self._report = owner.report
        self._token = lowlevel.current_token()
        self._works = True
        self._is_finishing = False
        self._finished = anyio.Event()  # or failed: its attempts again are not waited for
        own = {
            "service.name": "sidecar",
            "service.version": sidecar.__version__,
            "host.name": platform.node(),
            "sidecar.project": owner.root,
        }
        self._ids = _RunIds()
        self._provider = TracerProvider(
            resource=Resource.create().merge(Resource(own)).merge(OTELResourceDetector().detect()),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        exporter = _Exporter(self._on_result, endpoint, headers)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sidecar", sidecar.__version__)
        self._open: dict[tuple[str, str], Span] = {}  # by run, and what it is: "", `step KEY`, `task ID`, `agent ID`

    def on_event(self, event: RunEvent) -> None:
        """Begin or end the span that the event is about; never fails, never waits."""
        handle = _HANDLERS.get(event.kind)
        if handle is not None:
            handle(self, event)

    async def finish(self) -> None:
        """Send what waits, but not for long. Nothing of it is ever waited for at the end of the process."""
        self._is_finishing = True
        threading.Thread(target=self._shut_down, name="spans", daemon=True).start()
        with anyio.move_on_after(_AT_THE_END_S) as scope:
            await self._finished.wait()
        if scope.cancelled_caught:
            self._note(f"not within {_AT_THE_END_S:g} s")

    # --- sending, in threads

    def _shut_down(self) -> None:
        self._provider.shutdown()
        self._call(self._finished.set)

    def _on_result(self, problem: str | None) -> None:
        self._call(self._note, problem)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            from_thread.run_sync(function, *arguments, token=self._token)
        except anyio.RunFinishedError:  # it was not waited for
            return

    def _note(self, problem: str | None) -> None:
        if problem is not None and self._works:  # once, until it works again
            self._report(f"spans do not arrive: {problem}")
        self._works = problem is None
        if self._is_finishing and not self._works:
            self._finished.set()

    # --- events

    def _run_started(self, event: RunEvent) -> None:
        values = {
            "sidecar.run_id": event.run_id,
            "sidecar.resumed": event.kind == kinds.RUN_RESUMED,
            "sidecar.was": event.data.get("previous_status"),
        }
        self._begin(event, "", f"run {event.data.get('workflow')}", None, values)

    def _run_ended(self, event: RunEvent) -> None:
        status = event.data.get("status")
        # What was under way ends with the run: no event about it comes any more.
        for run_id, what in [key for key in self._open if key[0] == event.run_id and key[1]]:
            self._end(run_id, what, event.at, None, {"sidecar.cut_off": True})
        code = StatusCode.OK if status in _GOOD else StatusCode.ERROR if status in _BAD else None
        values = {"sidecar.status": status, "sidecar.limit": event.data.get("limit")}
        self._end(event.run_id, "", event.at, code, values)

    def _step_started(self, event: RunEvent) -> None:
        data = event.data
        values = {f"sidecar.{name}": data.get(name) for name in ("step", "type", "task", "attempt")}
        within = f"task {data['task']}" if data.get("task") else ""
        self._begin(event, f"step {data.get('step')}", f"{data.get('type')} {data.get('id')}", within, values)

    def _step_ended(self, event: RunEvent) -> None:
        code = StatusCode.OK if event.kind == kinds.STEP_COMPLETED else StatusCode.ERROR
        self._end(event.run_id, f"step {event.data.get('step')}", event.at, code, {})

    def _task_started(self, event: RunEvent) -> None:
        data = event.data
        values = {"sidecar.task": data.get("task"), "sidecar.index": data.get("index")}
        self._begin(event, f"task {data.get('task')}", f"task {data.get('task')}", f"step {data.get('step')}", values)

    def _task_ended(self, event: RunEvent) -> None:
        code = StatusCode.ERROR if event.data.get("error") else StatusCode.OK
        self._end(event.run_id, f"task {event.data.get('task')}", event.at, code, {})

    def _agent_started(self, event: RunEvent) -> None:
        data = event.data
        values = {"sidecar.agent": data.get("name"), "process.pid": data.get("pid")}
        what, within = f"agent {data.get('agent_id')}", f"step {data.get('step')}"
        self._begin(event, what, f"agent {data.get('name')}", within, values)

    def _agent_ended(self, event: RunEvent) -> None:
        data = event.data
        values = {f"sidecar.{name}": data.get(name) for name in ("reason", "rung", "exit_code", "survivors")}
        code = StatusCode.OK if data.get("reason") == "exited" and data.get("exit_code") == 0 else StatusCode.ERROR
        self._end(event.run_id, f"agent {data.get('agent_id')}", event.at, code, values)

    # --- spans

    def _begin(self, event: RunEvent, what: str, name: str, within: str | None, values: Mapping[str, Any]) -> None:
        parent = None
        if within is not None:  # what is around it may have begun before this process: then it belongs to the run
            parent = self._open.get((event.run_id, within)) or self._open.get((event.run_id, ""))
        context = Context() if parent is None else set_span_in_context(parent, Context())
        self._ids.trace_id = trace_id(event.run_id)
        span = self._tracer.start_span(name, context, attributes=_known(values), start_time=int(event.at * _NS))
        self._open[event.run_id, what] = span

    def _end(self, run_id: str, what: str, at: float, code: StatusCode | None, values: Mapping[str, Any]) -> None:
        span = self._open.pop((run_id, what), None)
        if span is None:
            return
        span.set_attributes(_known(values))
        if code is not None:
            span.set_status(Status(code))
        span.end(int(at * _NS))


class _RunIds(RandomIdGenerator):
    """Gives the trace its run's id, when the next span begins one."""

    trace_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id


class _Exporter(OTLPSpanExporter):
    """Passes on what becomes of its attempts: None, or what is wrong."""

    def __init__(self, on_result: Callable[[str | None], None], endpoint: str, headers: Mapping[str, str]) -> None:
        super().__init__(endpoint, headers=headers or None)
        self._on_result = on_result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        problems = _Problems(self._on_result)
        _log.addHandler(problems)
        try:
            result = super().export(spans)
        finally:
            _log.removeHandler(problems)
        if result is SpanExportResult.SUCCESS:
            self._on_result(None)
        return result


class _Problems(logging.Handler):
    """The warnings of an export, which logs each attempt that fails; without the texts of errors, which quote the
    address."""

    def __init__(self, on_problem: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._on_problem = on_problem
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread and isinstance(record.args, tuple):
            values = (type(one).__name__ if isinstance(one, Exception) else one for one in record.args)
            self._on_problem(record.msg % tuple(values))


def trace_id(run_id: str) -> int:
    """The trace of a run, the same for every owner that it ever has: a ULID has as many bits."""
    return int(run_id.translate(_AS_BASE_32), 32)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int) else str(value) for name, value in values.items() if value is not None
    }


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """The value, or that of the variable that it names."""
    if not text.startswith("$"):
        return text
    value = environment.get(text[1:])
    if not value:
        raise SidecarError(f"tracing needs the variable {text[1:]}, which is not set")
    return value


_HANDLERS: dict[str, Callable[[Spans, RunEvent], None]] = {
    kinds.RUN_STARTED: Spans._run_started,
    kinds.RUN_RESUMED: Spans._run_started,
    kinds.RUN_ENDED: Spans._run_ended,
    kinds.STEP_STARTED: Spans._step_started,
    kinds.STEP_COMPLETED: Spans._step_ended,
    kinds.STEP_FAILED: Spans._step_ended,
    kinds.TASK_STARTED: Spans._task_started,
    kinds.TASK_ENDED: Spans._task_ended,
    kinds.AGENT_STARTED: Spans._agent_started,
    kinds.AGENT_ENDED: Spans._agent_ended,
}
