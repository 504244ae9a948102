"""What of a run is told to people who do not watch it."""

from __future__ import annotations

from typing import Any

import pytest

from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.notify.channels import Notice
from sidecar.notify.notices import NoticeReader, summed

RUN = "01JC0000000000000000000000"


def event(kind: str, **data: Any) -> RunEvent:
    return RunEvent(RUN, kind, 1.0, data)


def told(*events: RunEvent) -> list[Notice]:
    reader = NoticeReader()
    return [notice for one in events if (notice := reader.read(one)) is not None]


@pytest.mark.parametrize("status", ["paused", "interrupted"])
def test_a_pause_was_told_by_its_question_and_an_interruption_by_whoever_caused_it(status: str) -> None:
    assert told(event(kinds.RUN_ENDED, status=status)) == []


def test_a_question_and_a_gate_wait_for_somebody() -> None:
    question, gate = told(event(kinds.QUESTION, prompt="Which branch?"), event(kinds.GATE, stage="design"))
    assert (question.event, gate.event) == ("waiting", "waiting")
    assert question.text == f"Which branch?\nTo answer: sidecar answer {RUN} VALUE"
    assert gate.title == "waits for approval of design"
    assert "--approve" in gate.text
    assert "--feedback" in gate.text


def test_what_happens_inside_a_run_is_not_told() -> None:
    steps = (kinds.STEP_STARTED, kinds.STEP_COMPLETED)
    inside = (*steps, kinds.AGENT_OUTPUT, kinds.AGENT_STARTED, kinds.WARNING, kinds.MESSAGE)
    assert told(*(event(kind, step="a", text="x") for kind in inside)) == []


def test_an_iteration_that_begins_tells_how_many_are_over() -> None:
    notices = told(*(event(kinds.ITERATION, step="loop", iteration=number, of=5) for number in (1, 2, 3)))
    assert [(notice.event, notice.done) for notice in notices] == [("milestone", 1), ("milestone", 2)]


def test_a_loop_inside_another_has_no_milestones() -> None:
    notices = told(
        event(kinds.ITERATION, step="outer", iteration=1),
        event(kinds.STEP_STARTED, step="outer[0]/inner", type="while"),
        event(kinds.ITERATION, step="inner", iteration=1),
        event(kinds.STEP_STARTED, step="outer[0]/inner[0]/work"),
        event(kinds.ITERATION, step="inner", iteration=2),
        event(kinds.ITERATION, step="outer", iteration=2),
    )
    assert [notice.done for notice in notices] == [1]


def test_the_loops_of_tasks_have_none_even_where_there_is_no_other() -> None:
    assert told(event(kinds.ITERATION, step="loop", iteration=7, task="batch.3")) == []


def test_a_loop_behind_another_has_milestones_of_its_own() -> None:
    notices = told(
        event(kinds.ITERATION, step="first", iteration=1),
        event(kinds.STEP_STARTED, step="first[0]/work"),
        event(kinds.ITERATION, step="second", iteration=1),
        event(kinds.STEP_STARTED, step="second[0]/work"),
        event(kinds.ITERATION, step="second", iteration=2),
    )
    assert [notice.done for notice in notices] == [1]


def test_nothing_that_a_terminal_or_a_header_would_obey_is_passed_on_and_nothing_endless() -> None:
    (notice,) = told(event(kinds.RUN_ENDED, status="failed", reason="\x1b]0;owned\x07\r" + "x" * 5000))
    assert all(character.isprintable() or character == "\n" for character in notice.text)
    assert len(notice.text) <= 1000


def test_several_are_told_as_one_with_the_weight_of_the_gravest() -> None:
    notices = [Notice("completed", RUN, 1.0, f"w{number}: completed") for number in range(12)]
    notices.append(Notice("failed", RUN, 1.0, "w: failed"))
    one = summed(notices, omitted=3)
    assert one.title == "16 notices: 12 completed, 1 failed"
    assert one.text.splitlines()[-1] == "and 6 more"
    assert (one.event, one.weight) == ("failed", 1)
    assert summed(notices[:1]) is notices[0]


def test_a_start_a_resume_and_an_end_that_can_be_resumed_say_so() -> None:
    notices = told(event(kinds.RUN_STARTED, workflow="w"), event(kinds.RUN_RESUMED, workflow="w"))
    assert [(notice.event, notice.title) for notice in notices] == [("started", "started"), ("started", "resumed")]
    (notice,) = told(event(kinds.RUN_ENDED, status="stopped", reason="tests are red"))
    assert (notice.event, notice.title) == ("stopped", "stopped")
    assert notice.text == f"tests are red\nTo continue: sidecar resume {RUN}"
