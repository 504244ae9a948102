"""What is next after a failure: the step's policy, the workflow's, the including step's, and a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.engine.cursor import actions
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import StepList
from sidecar.model.workflow import Workflow, numbered

ERROR = {"message": "it failed"}


def say(step_id: str, **keys: Any) -> dict[str, Any]:
    return {"type": "user_message", "id": step_id, "message": "m", **keys}


def including(**keys: Any) -> dict[str, Any]:
    return {"type": "include_workflow", "id": "inc", "workflow": "x", **keys}


def part(*steps: dict[str, Any], **keys: Any) -> StepList:
    return StepList.of_workflow(numbered(Workflow.model_validate({"steps": list(steps), **keys})))


class Play:
    """Does what the cursor asks; the steps in `failing` fail so many times. Written and read before each action."""

    def __init__(
        self, main: StepList, failing: dict[str, int], included: StepList | None = None, **answers: Any
    ) -> None:
        self.parts = {(): main, ("inc",): included or part()}
        self.failing = failing
        self.answers = answers
        self.cursor = Cursor.start(main)
        self.did: list[Any] = []

    def fails(self, key: str) -> bool:
        self.failing[key] = self.failing.get(key, 0) - 1
        return self.failing[key] >= 0

    def outcome(self, action: Any) -> actions.Outcome:
        match action:
            case actions.Boundary():
                return actions.Passed()
            case actions.Evaluate():
                self.did.append(("evaluate", action.field))
                return actions.Answer(self.answers[action.field])
            case actions.Delay():
                self.did.append(("delay", action.seconds_s))
            case actions.ApplyErrorUpdate():
                self.did.append(("settle", action.step.id, action.continues))
                if self.fails(f"settle {action.step.id}"):
                    return actions.ActionFailed({"message": "cannot be written"})
            case actions.Execute() | actions.Include():
                self.did.append((action.step.id, action.attempt))
                if self.fails(action.step.id):
                    return actions.ActionFailed(ERROR)
                if isinstance(action, actions.Include):
                    return actions.Included(self.parts[("inc",)])
        return actions.Completed()

    def to_the_end(self) -> Any:
        while not self.cursor.is_over:
            self.written_and_read()
            self.cursor = self.cursor.after(self.outcome(self.cursor.action))
        self.written_and_read()
        return self.cursor.action

    def written_and_read(self) -> None:
        self.cursor = Cursor.restore(json.loads(json.dumps(self.cursor.to_json())), self.parts.__getitem__)


FAILED = actions.Finished("failed", "it failed", ERROR)
DONE = actions.Finished("completed")


def test_a_step_that_fails_ends_the_run() -> None:
    play = Play(part(say("a"), say("b")), {"a": 1})
    assert play.to_the_end() == FAILED
    assert play.did == [("a", 1)]


def test_a_step_is_tried_again_after_its_delay_as_often_as_it_may() -> None:
    step = say("a", on_error="retry", retry_count=2, retry_delay="3s", retry_backoff="exponential")
    play = Play(part(step, say("b")), {"a": 2})
    assert play.to_the_end() == DONE
    assert play.did == [("a", 1), ("delay", 3.0), ("a", 2), ("delay", 6.0), ("a", 3), ("b", 1)]
    play = Play(part(step, say("b")), {"a": 3})
    assert play.to_the_end() == FAILED
    assert play.did == [("a", 1), ("delay", 3.0), ("a", 2), ("delay", 6.0), ("a", 3)]


def test_signals_are_looked_for_again_before_each_attempt() -> None:
    cursor = Cursor.start(part(say("a", on_error="retry", retry_delay=5)))
    cursor = cursor.after(actions.Passed()).after(actions.ActionFailed(ERROR))
    assert isinstance(cursor.action, actions.Delay)
    assert isinstance(cursor.after(actions.Completed()).action, actions.Boundary)


def test_failures_are_counted_anew_for_the_next_step_and_the_next_iteration() -> None:
    body = [say("a", on_error="retry", retry_count=1, retry_delay=0), say("b", on_error="retry", retry_count=1)]
    loop = {"type": "foreach", "id": "f", "items": "{{ x }}", "body": body}
    play = Play(part(loop), {}, items=[1, 2])
    failing_once = {("a", 1), ("b", 1)}
    original = play.outcome

    def outcome(action: Any) -> actions.Outcome:
        told = original(action)
        fails = isinstance(action, actions.Execute) and (action.step.id, action.attempt) in failing_once
        return actions.ActionFailed(ERROR) if fails else told

    play.outcome = outcome  # type: ignore[method-assign]
    assert play.to_the_end() == DONE
    assert [each for each in play.did if each[0] in "ab"] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)] * 2


def test_counts_and_delays_that_are_templates_are_asked_for_when_the_step_failed() -> None:
    step = say("a", on_error="retry", retry_count="{{ n }}", retry_delay="{{ d }}")
    play = Play(part(step), {"a": 9}, retry_count=1, retry_delay="2s")
    assert play.to_the_end() == FAILED
    asked = [("evaluate", "retry_count"), ("evaluate", "retry_delay")]
    assert play.did == [("a", 1), *asked, ("delay", 2.0), ("a", 2), *asked]


def test_a_delay_that_is_none_fails_the_step_with_the_reason() -> None:
    step = say("a", on_error="retry", retry_delay="{{ d }}")
    end = Play(part(step), {"a": 9}, retry_delay="soon").to_the_end()
    assert end.status == "failed"
    assert "`retry_delay` of step 'a'" in end.message


@pytest.mark.parametrize(
    ("keys", "did", "end"),
    [
        ({"on_error": "continue"}, [("a", 1), ("b", 1)], DONE),
        ({"on_error": "continue", "fallback_value": None}, [("a", 1), ("settle", "a", True), ("b", 1)], DONE),
        (
            {"on_error": "continue", "error_state_update": {"path": "raw.e", "value": 1}},
            [("a", 1), ("settle", "a", True), ("b", 1)],
            DONE,
        ),
        ({"error_state_update": {"path": "raw.e", "value": 1}}, [("a", 1), ("settle", "a", False)], FAILED),
        ({"fallback_value": 1}, [("a", 1)], FAILED),
        (
            {"on_error": "retry", "retry_count": 1, "retry_delay": 0, "fallback_value": 1},
            [("a", 1), ("a", 2), ("settle", "a", True), ("b", 1)],
            DONE,
        ),
    ],
)
def test_what_a_failed_step_leaves_behind_is_written_before_the_run_goes_on(
    keys: dict[str, Any], did: list[Any], end: actions.Finished
) -> None:
    play = Play(part(say("a", **keys), say("b")), {"a": 9})
    assert play.to_the_end() == end
    assert play.did == did


def test_what_cannot_be_written_is_the_error_then() -> None:
    step = say("a", on_error="continue", fallback_value=1)
    assert Play(part(step), {"a": 1, "settle a": 1}).to_the_end().message == "cannot be written"


def test_an_error_goes_up_to_the_step_that_included_the_workflow() -> None:
    inside = part({"type": "conditional", "condition": True, "then": [say("a"), say("never")]}, say("never"))
    again = including(on_error="retry", retry_count=1, retry_delay=0)
    play = Play(part(again, say("b")), {"a": 1}, inside)
    play.to_the_end()
    assert play.did[:4] == [("inc", 1), ("a", 1), ("inc", 2), ("a", 1)]
    play = Play(part(including(on_error="continue", fallback_value=0), say("b")), {"a": 1}, inside)
    assert play.to_the_end() == DONE
    assert play.did == [("inc", 1), ("a", 1), ("settle", "inc", True), ("b", 1)]
    play = Play(part(including(), say("b")), {"a": 1}, inside)
    assert play.to_the_end() == FAILED


def test_a_workflow_that_goes_on_after_errors_skips_the_failed_step_only() -> None:
    steps = ({"type": "conditional", "condition": True, "then": [say("a"), say("b")]}, say("c"))
    handling = {"on_error": "continue"}
    play = Play(part(*steps, error_handling=handling), {"a": 1})
    assert play.to_the_end() == DONE
    assert play.did == [("a", 1), ("b", 1), ("c", 1)]
    inside = part(*steps, error_handling=handling)
    play = Play(part(including(), say("d")), {"a": 1}, inside)
    assert play.to_the_end() == DONE
    assert play.did == [("inc", 1), ("a", 1), ("b", 1), ("c", 1), ("d", 1)]


# Resuming


def test_a_failed_run_is_resumed_at_the_step_that_failed_however_deep_it_stands() -> None:
    inside = part(say("a"), {"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("b"), say("c")]})
    play = Play(part(including(), say("d")), {"c": 1}, inside, items=[1, 2])
    assert play.to_the_end() == FAILED
    play.cursor = play.cursor.resumed()
    assert isinstance(play.cursor.action, actions.Boundary)
    assert play.to_the_end() == DONE
    assert [each[0] for each in play.did if each[0] in "abcd"] == ["a", "b", "c", "c", "b", "c", "d"]


def test_a_resume_keeps_the_count_of_failures_unless_told_otherwise() -> None:
    main = part(say("a", on_error="retry", retry_count=1, retry_delay=0))
    for reset, attempts in ((False, [1, 2, 2]), (True, [1, 2, 1, 2])):
        play = Play(main, {"a": 99})
        play.to_the_end()
        play.cursor = play.cursor.resumed(reset_error_counts=reset)
        assert play.to_the_end() == FAILED
        assert [each[1] for each in play.did] == attempts


def test_resuming_a_completed_run_changes_nothing() -> None:
    play = Play(part(say("a")), {})
    play.to_the_end()
    assert play.cursor.resumed().action == DONE


@pytest.mark.parametrize(
    "kind", [actions.Execute, actions.Delay, actions.ApplyErrorUpdate, actions.Evaluate, actions.Include]
)
def test_a_run_that_is_cut_off_in_a_step_does_that_step_again_from_its_boundary(kind: type) -> None:
    step = say("a", on_error="retry", retry_count="{{ n }}", retry_delay=5, fallback_value=1)
    play = Play(part(say("z"), including(), step), {"a": 99}, retry_count=1)
    while not isinstance(play.cursor.action, kind):
        play.cursor = play.cursor.after(play.outcome(play.cursor.action))
    play.written_and_read()
    step_id = play.cursor.steps[-1]
    play.cursor = play.cursor.resumed()
    action = play.cursor.action
    assert isinstance(action, actions.Boundary)
    assert action.step.id == step_id
    assert play.to_the_end() == DONE
    assert play.did.count(("z", 1)) == 1
