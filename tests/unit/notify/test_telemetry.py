"""Run events as numbers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent
from sidecar.notify.telemetry import Metrics

RUN, OTHER = ulid.new(), ulid.new()
_LINE = re.compile(r'sidecar_\w+\{(?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+\} [-+0-9.e]+')


def counted(*events: tuple[str, float, dict[str, Any]], statuses: tuple[str, ...] = ()) -> dict[str, float]:
    """The samples after some events of a run, without the label that all have."""
    metrics = Metrics("/p", lambda: statuses)
    for kind, at, data in events:
        metrics.on_event(RunEvent(RUN, kind, at, data))
    return samples(metrics)


def samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().splitlines() if not line.startswith("#")]
    assert all(_LINE.fullmatch(line) for line in lines), lines
    pairs = (re.sub(r',?project="/p"', "", line).replace("{,", "{").replace("{}", "").rpartition(" ") for line in lines)
    return {name: float(value) for name, _, value in pairs}


def test_runs_are_counted_by_status_from_the_journal_whoever_executed_them() -> None:
    found = counted(statuses=("completed", "completed", "running"))
    assert found['sidecar_runs{status="completed"}'] == 2
    assert found['sidecar_runs{status="running"}'] == 1
    assert found['sidecar_runs{status="failed"}'] == 0


def test_starts_resumes_and_ends_are_counted() -> None:
    found = counted(
        (kinds.RUN_STARTED, 1.0, {"workflow": "w", "previous_status": "pending"}),
        (kinds.RUN_ENDED, 2.0, {"status": "interrupted"}),
        (kinds.RUN_RESUMED, 3.0, {"workflow": "w", "previous_status": "interrupted"}),
    )
    assert found["sidecar_runs_started_total"] == 1
    assert found['sidecar_runs_resumed_total{was="interrupted"}'] == 1
    assert found['sidecar_runs_ended_total{status="interrupted"}'] == 1
    assert found["sidecar_runs_here"] == 1


def test_steps_are_counted_by_type_and_outcome_and_further_attempts_apart() -> None:
    step = {"step": "a", "id": "a", "type": "shell_command"}
    found = counted(
        (kinds.STEP_STARTED, 1.0, {**step, "attempt": 1}),
        (kinds.STEP_FAILED, 2.0, {**step, "error": {"message": "no"}}),
        (kinds.STEP_STARTED, 3.0, {**step, "attempt": 2}),
        (kinds.STEP_COMPLETED, 4.0, step),
    )
    assert found['sidecar_steps_total{outcome="failed",type="shell_command"}'] == 1
    assert found['sidecar_steps_total{outcome="completed",type="shell_command"}'] == 1
    assert found['sidecar_step_retries_total{type="shell_command"}'] == 1


def test_the_ladder_counts_what_had_to_be_ended_and_survivors_wherever_they_are() -> None:
    found = counted(
        *[(kinds.AGENT_STARTED, 1.0, {"agent_id": name}) for name in "abc"],
        (kinds.AGENT_ENDED, 2.0, {"agent_id": "a", "reason": "exited", "rung": "exited", "survivors": 0}),
        (kinds.AGENT_ENDED, 2.0, {"agent_id": "b", "reason": "abort", "rung": "kill", "survivors": 2}),
    )
    assert found["sidecar_agents"] == 1
    assert found['sidecar_agents_ended_total{reason="exited"}'] == 1
    assert found['sidecar_ladder_rungs_total{rung="kill"}'] == 1
    assert 'sidecar_ladder_rungs_total{rung="exited"}' not in found
    assert found["sidecar_survivors_total"] == 2


def test_a_signal_is_measured_from_its_file_to_the_run_and_from_there_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / ".abort"
    path.touch()
    written_at = os.lstat(path).st_ctime
    asked = {"signal": "abort", "source": "file", "path": str(path)}
    found = counted(
        (kinds.RUN_STARTED, written_at - 1, {}),
        (kinds.SIGNAL, written_at + 0.03, asked),
        (kinds.RUN_ENDED, written_at + 0.23, {"status": "aborted"}),
    )
    assert found['sidecar_signals_total{signal="abort"}'] == 1
    assert found['sidecar_signal_noticed_seconds_bucket{le="0.025",signal="abort"}'] == 0
    assert found['sidecar_signal_noticed_seconds_bucket{le="0.05",signal="abort"}'] == 1
    assert found['sidecar_signal_applied_seconds_bucket{le="0.1",signal="abort"}'] == 0
    assert found['sidecar_signal_applied_seconds_bucket{le="0.25",signal="abort"}'] == 1
    assert found['sidecar_signal_applied_seconds_count{signal="stop"}'] == 0


def test_what_was_there_before_the_run_or_was_taken_back_is_no_measure(tmp_path: Path) -> None:
    path = tmp_path / ".stop"
    path.touch()
    asked = {"signal": "stop", "source": "file", "path": str(path)}
    written_at = os.lstat(path).st_ctime
    found = counted(
        (kinds.RUN_STARTED, written_at + 5, {}),
        (kinds.SIGNAL, written_at + 5, asked),
        (kinds.SIGNAL, written_at + 6, {"signal": "stop", "cancelled": True}),
        (kinds.RUN_ENDED, written_at + 7, {"status": "stopped"}),
    )
    assert found['sidecar_signal_noticed_seconds_count{signal="stop"}'] == 0
    assert found['sidecar_signal_applied_seconds_count{signal="stop"}'] == 0


def test_agents_of_a_run_that_ended_without_a_word_about_them_are_not_counted_on() -> None:
    metrics = Metrics("/p", lambda: ())
    for run_id in (RUN, OTHER):
        metrics.on_event(RunEvent(run_id, kinds.AGENT_STARTED, 1.0, {"agent_id": f"of {run_id}"}))
    metrics.on_event(RunEvent(RUN, kinds.RUN_ENDED, 2.0, {"status": "failed"}))
    assert samples(metrics)["sidecar_agents"] == 1


def test_nothing_that_a_person_or_an_agent_wrote_becomes_a_label() -> None:
    hostile = 'x"} 1\nsidecar_evil{a="b'
    names = ("workflow", "step", "id", "type", "reason", "rung", "name", "previous_status", "status")
    written = dict.fromkeys(names, hostile)
    metrics = Metrics('/p"\\\n', lambda: [hostile])
    for kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.STEP_STARTED, kinds.STEP_FAILED, kinds.AGENT_ENDED):
        metrics.on_event(RunEvent(RUN, kind, 1.0, {**written, "attempt": 2, "error": hostile, "survivors": 0}))
    metrics.on_event(RunEvent(RUN, kinds.RUN_ENDED, 1.0, written))
    text = metrics.text()
    assert "evil" not in text
    assert 'type="other"' in text
    assert all(_LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
