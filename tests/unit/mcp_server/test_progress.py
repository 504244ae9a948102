from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.mcp_server.progress import Note, Plan, Story
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent

STATES = {"plan": "Plans.", "loop": "", "end": ""}


def told(story: Story, *events: tuple[str, dict[str, Any]]) -> list[Note]:
    return [note for kind, data in events for note in story.notes(RunEvent("r", kind, time.time(), data))]


def steps(story: Story, *keys: str) -> list[str]:
    return [note.message for note in told(story, *((kinds.STEP_STARTED, {"step": key}) for key in keys))]


def test_what_happens_inside_a_loop_or_a_task_belongs_to_its_top_level_step() -> None:
    story = Story(Plan("w", {}, STATES))
    assert steps(story, "plan", "loop[0]/a", "loop[0]/b/c", "loop[1]/a", "loop.3#1~2/x", "end") == [
        "Entering state: plan",
        "Completed state: plan",
        "Entering state: loop",
        "Completed state: loop",
        "Entering state: end",
    ]


def test_what_an_earlier_step_left_in_the_background_does_not_turn_the_run_back() -> None:
    story = Story(Plan("w", {}, STATES))
    assert steps(story, "loop.0/a", "end", "loop.1/a") == [
        "Entering state: loop",
        "Completed state: loop",
        "Entering state: end",
    ]


def test_a_run_whose_steps_nobody_knows_still_comes_closer_to_its_end() -> None:
    story = Story(Plan("w", {}, {}))
    events = [(kinds.STEP_STARTED, {"step": f"s{number}"}) for number in range(50)]
    shares = [note.progress for note in told(story, *events)]
    assert shares == sorted(shares)
    assert 90 < shares[-1] < 100
    assert told(story, (kinds.RUN_ENDED, {"status": "completed"}))[-1].progress == 100


@pytest.mark.parametrize("status", ["stopped", "paused"])
def test_a_run_that_ends_before_its_end_is_not_at_100(status: str) -> None:
    story = Story(Plan("w", {}, STATES))
    steps(story, "plan", "loop[0]/a")
    (note,) = told(story, (kinds.RUN_ENDED, {"status": status}))
    assert (note.kind, note.message, note.metadata["status"]) == ("flow_complete", f"Workflow {status}: w", status)
    assert note.progress < 100


EVENTS = st.sampled_from(
    [kinds.RUN_STARTED, kinds.RUN_RESUMED, kinds.STEP_STARTED, kinds.STEP_COMPLETED, kinds.AGENT_OUTPUT]
)
KEYS = st.sampled_from(["plan", "loop", "loop[3]/x", "loop.2/y", "end", "else", "end/x", ""])


@given(st.lists(st.tuples(EVENTS, KEYS)), st.sampled_from(["completed", "failed", "aborted", "stopped"]))
def test_progress_never_falls_and_stays_within_0_and_100(events: list[tuple[str, str]], status: str) -> None:
    story = Story(Plan("w", {}, STATES))
    notes = told(story, *((kind, {"step": key}) for kind, key in events), (kinds.RUN_ENDED, {"status": status}))
    shares = [note.progress for note in notes]
    assert shares == sorted(shares)
    assert all(0 <= share <= 100 for share in shares)
    assert (100 in shares) is (status == "completed")
