"""What is next after a failure: the step's policy, the workflow's, the including step's, and a resume."""

from __future__ import annotations

import json
from typing import Any

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


def test_signals_are_looked_for_again_before_each_attempt() -> None:
    cursor = Cursor.start(part(say("a", on_error="retry", retry_delay=5)))
    cursor = cursor.after(actions.Passed()).after(actions.ActionFailed(ERROR))
    assert isinstance(cursor.action, actions.Delay)
    assert isinstance(cursor.after(actions.Completed()).action, actions.Boundary)


def test_a_delay_that_is_none_fails_the_step_with_the_reason() -> None:
    step = say("a", on_error="retry", retry_delay="{{ d }}")
    end = Play(part(step), {"a": 9}, retry_delay="soon").to_the_end()
    assert end.status == "failed"
    assert "`retry_delay` of step 'a'" in end.message


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
