"""Run events as numbers: counted as they are heard, and told in Prometheus' text format.

Labels have few values, all of them words of ours: nothing that a person or an agent wrote becomes one.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import sidecar
from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from sidecar.model.events import RunEvent

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OTHER = "other"  # a word that is not one of ours
_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
_OBEYED = {"stop": "stopped", "abort": "aborted"}
_COUNTERS = {
    "runs_started_total": "Runs that were started.",
    "runs_resumed_total": "Runs that went on, by what they were before; interrupted: their owner had died or ended.",
    "runs_ended_total": "Ends of runs, by status.",
    "steps_total": "Attempts at steps that are over, by type and outcome.",
    "step_retries_total": "Attempts at steps that were not the first.",
    "agents_started_total": "Agents and commands that were started.",
    "agents_ended_total": "Agents and commands that ended, by reason.",
    "ladder_rungs_total": "Agents and commands that had to be ended, by the rung that it took.",
    "survivors_total": "Processes that outlived the ladder.",
    "signals_total": "Signals that runs were told of.",
    "cost_usd_total": "What agents say that they cost.",
    "tokens_total": "Tokens that agents say they used.",
}
_LATENCIES = {
    "signal_noticed_seconds": "From a signal file's last change until its run was told.",
    "signal_applied_seconds": "From then until the run had ended, for an abort with all of its processes.",
}
_STATUSES = ("pending", "running", "paused", "completed", "failed", "aborted", "stopped", "interrupted")


class Metrics:
    """What one process knows of the runs of one project."""

    def __init__(self, project: str, statuses: Callable[[], Iterable[str]]) -> None:
        """`statuses`: of all runs in the journal, asked for each time that somebody looks."""
        self._project = project
        self._statuses = statuses
        self._born = time.time()
        self._counts: dict[str, dict[tuple[tuple[str, str], ...], float]] = {name: {} for name in _COUNTERS}
        self._latencies = {(name, signal): _Histogram() for name in _LATENCIES for signal in _OBEYED}
        self._agents: dict[str, str] = {}  # those that run now, with their runs
        self._started: dict[str, float] = {}  # runs that are executed here
        self._asked: dict[str, tuple[str, float]] = {}  # the signal that a run was told of, and when

    def hear(self, event: RunEvent) -> None:
        """Count it; never fails, never waits."""
        tell = _HEARD.get(event.kind)
        if tell is not None:
            tell(self, event)

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        return "".join(f"{line}\n" for line in self._lines())

    def _add(self, name: str, amount: float = 1, **labels: object) -> None:
        counts, key = self._counts[name], tuple((label, _word(value)) for label, value in labels.items())
        counts[key] = counts.get(key, 0.0) + amount

    # --- events

    def _run_begun(self, event: RunEvent) -> None:
        self._started[event.run_id] = event.at
        if event.kind == kinds.RUN_STARTED or event.data.get("previous_status") in (None, "pending"):
            self._add("runs_started_total")
        else:
            self._add("runs_resumed_total", was=event.data["previous_status"])

    def _run_ended(self, event: RunEvent) -> None:
        self._add("runs_ended_total", status=event.data.get("status"))
        self._started.pop(event.run_id, None)
        signal, at = self._asked.pop(event.run_id, ("", 0.0))
        if _OBEYED.get(signal) == event.data.get("status"):
            self._latencies["signal_applied_seconds", signal].add(event.at - at)
        self._agents = {agent: run for agent, run in self._agents.items() if run != event.run_id}

    def _step_started(self, event: RunEvent) -> None:
        if (event.data.get("attempt") or 1) > 1:
            self._add("step_retries_total", type=event.data.get("type"))

    def _step_ended(self, event: RunEvent) -> None:
        self._add("steps_total", type=event.data.get("type"), outcome=event.kind.removeprefix("step_"))

    def _agent_started(self, event: RunEvent) -> None:
        self._agents[str(event.data.get("agent_id"))] = event.run_id
        self._add("agents_started_total")

    def _agent_ended(self, event: RunEvent) -> None:
        data = event.data
        self._agents.pop(str(data.get("agent_id")), None)
        self._add("agents_ended_total", reason=data.get("reason"))
        if data.get("reason") != "exited":
            self._add("ladder_rungs_total", rung=data.get("rung"))
        self._add("survivors_total", data.get("survivors") or 0)

    def _signal(self, event: RunEvent) -> None:
        signal = event.data.get("signal")
        if event.data.get("cancelled") or signal not in _OBEYED:
            self._asked.pop(event.run_id, None)
            return
        self._asked[event.run_id] = signal, event.at
        self._add("signals_total", signal=signal)
        written_at = _changed_at(event.data.get("path"))
        # One that was there before the run is no measure of how quickly it is noticed.
        if written_at is not None and written_at >= self._started.get(event.run_id, 0.0):
            self._latencies["signal_noticed_seconds", signal].add(event.at - written_at)

    def _spent(self, event: RunEvent) -> None:
        self._add("cost_usd_total", event.data.get("cost_usd") or 0)
        self._add("tokens_total", event.data.get("tokens") or 0)

    # --- text

    def _lines(self) -> Iterator[str]:
        yield from _head("info", "gauge", "The version of sidecar, and the project.")
        yield self._sample("info", 1, {"version": sidecar.__version__})
        yield from _head("start_time_seconds", "gauge", "When this process began to count; it changes at a restart.")
        yield self._sample("start_time_seconds", self._born, {})
        yield from _head("runs", "gauge", "Runs in the journal, by status.")
        counted = Counter(self._statuses())
        for status in _STATUSES:
            yield self._sample("runs", counted[status], {"status": status})
        yield from _head("runs_here", "gauge", "Runs that this process executes.")
        yield self._sample("runs_here", len(self._started), {})
        yield from _head("agents", "gauge", "Agents and commands that run now, of those runs.")
        yield self._sample("agents", len(self._agents), {})
        for name, about in _COUNTERS.items():
            yield from _head(name, "counter", about)
            for labels, value in sorted(self._counts[name].items()):
                yield self._sample(name, value, dict(labels))
        for name, about in _LATENCIES.items():
            yield from _head(name, "histogram", about)
            for signal in _OBEYED:
                for suffix, value, more in self._latencies[name, signal].samples():
                    yield self._sample(name + suffix, value, {"signal": signal, **more})

    def _sample(self, name: str, value: float, labels: Mapping[str, str]) -> str:
        told = {"project": self._project, **labels}
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in told.items())
        return f"sidecar_{name}{{{inside}}} {value:.15g}"


class _Histogram:
    def __init__(self) -> None:
        self._buckets = [0] * len(_BOUNDS_S)
        self._count = 0
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        seconds = max(0.0, seconds)  # the clock that dates files lags behind, and any clock can be set
        self._count += 1
        self._sum += seconds
        for place, bound in enumerate(_BOUNDS_S):
            self._buckets[place] += seconds <= bound

    def samples(self) -> Iterator[tuple[str, float, dict[str, str]]]:
        for bound, count in zip(_BOUNDS_S, self._buckets, strict=True):
            yield "_bucket", count, {"le": f"{bound:g}"}
        yield "_bucket", self._count, {"le": "+Inf"}
        yield "_sum", self._sum, {}
        yield "_count", self._count, {}


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP sidecar_{name} {about}", f"# TYPE sidecar_{name} {kind}"


def _word(value: object) -> str:
    text = str(value)
    return text if text.isascii() and text.replace("_", "").isalpha() and text.islower() else _OTHER


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _changed_at(path: object) -> float | None:
    if not isinstance(path, str):
        return None
    try:
        return os.lstat(path).st_ctime
    except OSError:  # taken back meanwhile
        return None


_HEARD: dict[str, Callable[[Metrics, RunEvent], None]] = {
    kinds.RUN_STARTED: Metrics._run_begun,
    kinds.RUN_RESUMED: Metrics._run_begun,
    kinds.RUN_ENDED: Metrics._run_ended,
    kinds.STEP_STARTED: Metrics._step_started,
    kinds.STEP_COMPLETED: Metrics._step_ended,
    kinds.STEP_FAILED: Metrics._step_ended,
    kinds.AGENT_STARTED: Metrics._agent_started,
    kinds.AGENT_ENDED: Metrics._agent_ended,
    kinds.SIGNAL: Metrics._signal,
    kinds.USAGE: Metrics._spent,
}
