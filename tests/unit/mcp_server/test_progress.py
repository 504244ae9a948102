from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.mcp_server.progress import ExpectedSteps, ProgressNote, RunProgress
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent

STATES = {"plan": "Plans.", "loop": "", "end": ""}


def told(progress: RunProgress, *events: tuple[str, dict[str, Any]]) -> list[ProgressNote]:
    return [note for kind, data in events for note in progress.notes(RunEvent("r", kind, time.time(), data))]


def steps(progress: RunProgress, *keys: str) -> list[str]:
    return [note.message for note in told(progress, *((kinds.STEP_STARTED, {"step": key}) for key in keys))]


def test_what_happens_inside_a_loop_or_a_task_belongs_to_its_top_level_step() -> None:
    progress = RunProgress(ExpectedSteps("w", {}, STATES))
    assert steps(progress, "plan", "loop[0]/a", "loop[0]/b/c", "loop[1]/a", "loop.3#1~2/x", "end") == [
        "Entering state: plan",
        "Completed state: plan",
        "Entering state: loop",
        "Completed state: loop",
        "Entering state: end",
    ]


def test_what_an_earlier_step_left_in_the_background_does_not_turn_the_run_back() -> None:
    progress = RunProgress(ExpectedSteps("w", {}, STATES))
    assert steps(progress, "loop.0/a", "end", "loop.1/a") == [
        "Entering state: loop",
        "Completed state: loop",
        "Entering state: end",
    ]


def test_a_run_whose_steps_nobody_knows_still_comes_closer_to_its_end() -> None:
    progress = RunProgress(ExpectedSteps("w", {}, {}))
    events = [(kinds.STEP_STARTED, {"step": f"s{number}"}) for number in range(50)]
    shares = [note.progress for note in told(progress, *events)]
    assert shares == sorted(shares)
    assert 90 < shares[-1] < 100
    assert told(progress, (kinds.RUN_ENDED, {"status": "completed"}))[-1].progress == 100


@pytest.mark.parametrize("status", ["stopped", "paused"])
def test_a_run_that_ends_before_its_end_is_not_at_100(status: str) -> None:
    progress = RunProgress(ExpectedSteps("w", {}, STATES))
    steps(progress, "plan", "loop[0]/a")
    (note,) = told(progress, (kinds.RUN_ENDED, {"status": status}))
    assert (note.kind, note.message, note.metadata["status"]) == ("flow_complete", f"Workflow {status}: w", status)
    assert note.progress < 100


EVENTS = st.sampled_from(
    [kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.STEP_STARTED, kinds.STEP_COMPLETED, kinds.AGENT_OUTPUT]
)
KEYS = st.sampled_from(["plan", "loop", "loop[3]/x", "loop.2/y", "end", "else", "end/x", ""])


@given(st.lists(st.tuples(EVENTS, KEYS)), st.sampled_from(["completed", "failed", "aborted", "stopped"]))
def test_progress_never_falls_and_stays_within_0_and_100(events: list[tuple[str, str]], status: str) -> None:
    progress = RunProgress(ExpectedSteps("w", {}, STATES))
    notes = told(progress, *((kind, {"step": key}) for kind, key in events), (kinds.RUN_ENDED, {"status": status}))
    shares = [note.progress for note in notes]
    assert shares == sorted(shares)
    assert all(0 <= share <= 100 for share in shares)
    assert (100 in shares) is (status == "completed")
