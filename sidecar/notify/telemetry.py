"""Metrics and traces of an owner's runs. Their packages, the extra `telemetry`, are imported only where a setting asks.

Labels have few values, all of them words of ours: nothing that a person or an agent wrote becomes one.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

import sidecar
from sidecar.errors import SidecarError, UnwrappedErrors
from sidecar.model import events as kinds
from sidecar.signals import files

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from prometheus_client import Metric

    from sidecar.model.events import RunEvent
    from sidecar.notify.spans import Spans
    from sidecar.service.owners import LocalRuns

    Page = Callable[[], str | None]  # None: it is not to be had now

METRICS_PATH = "/metrics"
_MISSING = "metrics and traces need packages that are not installed: pip install 'agent-sidecar[telemetry]'"
_WRITE_EVERY_S = 10.0
_OTHER = "other"  # a word that is not one of ours
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
_RESULTS = {"stop": "stopped", "abort": "aborted"}
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {  # what each counts, and its labels
    "runs_started_total": ("Runs that were started.", ()),
    "runs_resumed_total": ("Runs that were resumed, by status before; interrupted: their owner had ended.", ("was",)),
    "runs_ended_total": ("Ends of runs, by status.", ("status",)),
    "steps_total": ("Attempts at steps that are over, by type and outcome.", ("type", "outcome")),
    "step_retries_total": ("Attempts at steps that were not the first.", ("type",)),
    "agents_started_total": ("Agents and commands that were started.", ()),
    "agents_ended_total": ("Agents and commands that ended, by reason.", ("reason",)),
    "ladder_rungs_total": ("Agents and commands that had to be ended, by the rung that it took.", ("rung",)),
    "survivors_total": ("Processes that outlived the ladder.", ()),
    "signals_total": ("Signals that reached runs.", ("signal",)),
    "cost_usd_total": ("What agents report as their cost.", ()),
    "tokens_total": ("Tokens that agents report.", ()),
}
_LATENCIES = {
    "signal_noticed_seconds": "From a signal file's last change until its run noticed it.",
    "signal_applied_seconds": "From then until the run had ended, for an abort with all of its processes.",
}
_STATUSES = ("pending", "running", "paused", "completed", "failed", "aborted", "stopped", "interrupted")


@asynccontextmanager
async def observed(runs: LocalRuns, *, counts: bool = False) -> AsyncIterator[dict[str, Page]]:
    """Observes the runs of an owner; gives the pages for its web server, if it has one.

    `counts`: it lives long enough for its numbers to mean something, and is the only one in the project that does. It
    counts whatever the settings are, which may be read again: a count that began in the middle would be wrong.
    """
    spans = _spans(runs)
    numbers = _Publisher(runs) if counts else None
    with UnwrappedErrors():
        async with anyio.create_task_group() as tasks:
            if numbers is not None:
                tasks.start_soon(numbers.keep_file)
            try:
                yield {METRICS_PATH: numbers.page} if numbers is not None else {}
            finally:
                with anyio.CancelScope(shield=True):
                    if numbers is not None:
                        numbers.write_file()
                    if spans is not None:
                        await spans.finish()
                tasks.cancel_scope.cancel()


def _spans(runs: LocalRuns) -> Spans | None:
    """The traces, where they are switched on. What is missing for them is reported, and keeps no run from its work."""
    owner = runs.owner
    if owner.settings.otlp_endpoint is None:
        return None
    try:
        from sidecar.notify.spans import Spans  # noqa: PLC0415 - only for those who have it set

        spans = Spans(owner)
    except ImportError:
        owner.report(_MISSING)
        return None
    except SidecarError as error:
        owner.report(str(error))
        return None
    runs.listeners.add(spans.on_event)
    return spans


class _Publisher:
    """The numbers of a daemon, as a page and in a file, as far as its settings ask for them now."""

    def __init__(self, runs: LocalRuns) -> None:
        self._owner = owner = runs.owner
        self._metrics = Metrics(owner.root, lambda: (status for _, status, _ in owner.journal.standings()))
        self._is_reported = False
        runs.listeners.add(self._metrics.on_event)

    def page(self) -> str | None:
        return self._metrics.text() if self._owner.settings.metrics and self._is_installed() else None

    async def keep_file(self) -> None:
        while True:
            self.write_file()
            await anyio.sleep(_WRITE_EVERY_S)

    def write_file(self) -> None:
        settings = self._owner.settings
        if not (settings.metrics or settings.metrics_file) or not self._is_installed() or not settings.metrics_file:
            return
        directory, name = os.path.split(os.path.join(self._owner.root, os.path.expanduser(settings.metrics_file)))
        try:
            # Whole or not at all: the collector may read at any moment.
            files.replace(directory, name, self._metrics.text().encode())
        except (OSError, SidecarError) as error:
            self._owner.report(f"cannot write {settings.metrics_file}: {error}")

    def _is_installed(self) -> bool:
        if importlib.util.find_spec("prometheus_client") is not None:
            return True
        if not self._is_reported:
            self._owner.report(_MISSING)
        self._is_reported = True
        return False


class Metrics:
    """What one process knows of the runs of one project, counted since it started."""

    def __init__(self, project: str, statuses: Callable[[], Iterable[str]]) -> None:
        """`statuses`: of all runs in the journal, asked for each time that the numbers are read."""
        self._project = os.fsencode(project).decode(errors="replace")
        self._statuses = statuses
        self._start = time.time()
        self._counts: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _COUNTERS}
        self._latencies: dict[tuple[str, str], list[float]] = {
            (name, signal): [] for name in _LATENCIES for signal in _RESULTS
        }  # a float for each signal: those are few
        self._agents: dict[str, str] = {}  # those that run now, with their runs
        self._runs: dict[str, float] = {}  # that are executed here, with their start
        self._signals: dict[str, tuple[str, float]] = {}  # the signal that a run has noticed, and when

    def on_event(self, event: RunEvent) -> None:
        """Count an event; never fails, never waits."""
        count = _COUNTED.get(event.kind)
        if count is not None:
            count(self, event)

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415 - only for those who have it set

        return generate_latest(self).decode()

    def collect(self) -> Iterator[Metric]:
        """Everything, as prometheus_client reads it."""
        from prometheus_client import metrics_core as families  # noqa: PLC0415 - as above

        statuses = Counter(self._statuses())
        gauges: list[tuple[str, str, dict[str, float], str]] = [
            ("info", "The version of sidecar, and the project.", {sidecar.__version__: 1}, "version"),
            ("start_time_seconds", "When this process began to count.", {"": self._start}, ""),
            ("runs", "Runs in the journal, by status.", {one: statuses[one] for one in _STATUSES}, "status"),
            ("runs_here", "Runs that this process executes.", {"": len(self._runs)}, ""),
            ("agents", "Agents and commands that run now, of those runs.", {"": len(self._agents)}, ""),
        ]
        for name, about, values, label in gauges:
            gauge = families.GaugeMetricFamily(f"sidecar_{name}", about, labels=["project", *filter(None, [label])])
            for text, value in values.items():
                gauge.add_metric([self._project, *filter(None, [text])], value)
            yield gauge
        for name, (about, labels) in _COUNTERS.items():
            counter = families.CounterMetricFamily(f"sidecar_{name}", about, labels=["project", *labels])
            for key, value in sorted(self._counts[name].items()):
                counter.add_metric([self._project, *key], value)
            yield counter
        for name, about in _LATENCIES.items():
            histogram = families.HistogramMetricFamily(f"sidecar_{name}", about, labels=["project", "signal"])
            for signal in _RESULTS:
                seconds = self._latencies[name, signal]
                buckets = [(f"{bound:g}", sum(one <= bound for one in seconds)) for bound in _BOUNDS_S]
                histogram.add_metric([self._project, signal], [*buckets, ("+Inf", len(seconds))], sum(seconds))
            yield histogram

    # --- events

    def _add(self, name: str, *labels: object, amount: float = 1) -> None:
        counts, key = self._counts[name], tuple(_word(value) for value in labels)
        counts[key] = counts.get(key, 0.0) + amount

    def _measure(self, name: str, signal: str, seconds: float) -> None:
        # Not below zero: the clock that dates files lags behind, and any clock can be set.
        self._latencies[name, signal].append(max(0.0, seconds))

    def _run_started(self, event: RunEvent) -> None:
        self._runs[event.run_id] = event.at
        if event.kind == kinds.RUN_STARTED or event.data.get("previous_status") in (None, "pending"):
            self._add("runs_started_total")
        else:
            self._add("runs_resumed_total", event.data["previous_status"])

    def _run_ended(self, event: RunEvent) -> None:
        self._add("runs_ended_total", event.data.get("status"))
        self._runs.pop(event.run_id, None)
        signal, at = self._signals.pop(event.run_id, ("", 0.0))
        if _RESULTS.get(signal) == event.data.get("status"):
            self._measure("signal_applied_seconds", signal, event.at - at)
        self._agents = {agent: run for agent, run in self._agents.items() if run != event.run_id}

    def _step_started(self, event: RunEvent) -> None:
        if (event.data.get("attempt") or 1) > 1:
            self._add("step_retries_total", event.data.get("type"))

    def _step_ended(self, event: RunEvent) -> None:
        self._add("steps_total", event.data.get("type"), event.kind.removeprefix("step_"))

    def _agent_started(self, event: RunEvent) -> None:
        self._agents[str(event.data.get("agent_id"))] = event.run_id
        self._add("agents_started_total")

    def _agent_ended(self, event: RunEvent) -> None:
        data = event.data
        self._agents.pop(str(data.get("agent_id")), None)
        self._add("agents_ended_total", data.get("reason"))
        if data.get("reason") != "exited":
            self._add("ladder_rungs_total", data.get("rung"))
        self._add("survivors_total", amount=data.get("survivors") or 0)

    def _signal(self, event: RunEvent) -> None:
        signal = event.data.get("signal")
        if event.data.get("cancelled") or signal not in _RESULTS:
            self._signals.pop(event.run_id, None)
            return
        self._signals[event.run_id] = signal, event.at
        self._add("signals_total", signal)
        written_at = _changed_at(event.data.get("path"))
        # One that was there before the run is no measure of how quickly it is noticed.
        if written_at is not None and written_at >= self._runs.get(event.run_id, 0.0):
            self._measure("signal_noticed_seconds", signal, event.at - written_at)

    def _usage(self, event: RunEvent) -> None:
        self._add("cost_usd_total", amount=event.data.get("cost_usd") or 0)
        self._add("tokens_total", amount=event.data.get("tokens") or 0)


def _word(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.replace("_", "").isalpha() and text.islower() else _OTHER


def _changed_at(path: object) -> float | None:
    if not isinstance(path, str):
        return None
    try:
        return os.lstat(path).st_ctime
    except OSError:  # taken back meanwhile
        return None


_COUNTED: dict[str, Callable[[Metrics, RunEvent], None]] = {
    kinds.RUN_STARTED: Metrics._run_started,
    kinds.RUN_RESUMED: Metrics._run_started,
    kinds.RUN_ENDED: Metrics._run_ended,
    kinds.STEP_STARTED: Metrics._step_started,
    kinds.STEP_COMPLETED: Metrics._step_ended,
    kinds.STEP_FAILED: Metrics._step_ended,
    kinds.AGENT_STARTED: Metrics._agent_started,
    kinds.AGENT_ENDED: Metrics._agent_ended,
    kinds.SIGNAL: Metrics._signal,
    kinds.USAGE: Metrics._usage,
}
