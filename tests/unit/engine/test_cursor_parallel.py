"""The tasks of `parallel_foreach`: each item once, through stops, failures and the background."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.engine.cursor import actions
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import StepList
from sidecar.errors import DefinitionChanged
from sidecar.model.workflow import Workflow, numbered

ERROR = {"message": "it failed"}
DONE = actions.Finished("completed")


def say(step_id: str, **keys: Any) -> dict[str, Any]:
    return {"type": "user_message", "id": step_id, "message": "m", **keys}


def tasks(**keys: Any) -> dict[str, Any]:
    return {"type": "parallel_foreach", "id": "p", "items": "{{ x }}", "sub_agent_task": "t", **keys}


def part(*steps: dict[str, Any]) -> StepList:
    return StepList.of_workflow(numbered(Workflow.model_validate({"steps": list(steps)})))


def again(cursor: Cursor, main: StepList) -> Cursor:
    return Cursor.restore(json.loads(json.dumps(cursor.to_json())), lambda path: main)


def until(cursor: Cursor, kind: type, **answers: Any) -> Cursor:
    """Everything done but tasks, up to an action of that kind."""
    while not isinstance(cursor.action, kind):
        match cursor.action:
            case actions.Boundary():
                cursor = cursor.after(actions.Passed())
            case actions.Evaluate(field=field):
                cursor = cursor.after(actions.Answer(answers[field]))
            case actions.Parallel() | actions.Finished():
                raise AssertionError(cursor.action)
            case _:
                cursor = cursor.after(actions.Completed())
    return cursor


def started(*steps: dict[str, Any], items: int = 3, **answers: Any) -> tuple[Cursor, Any]:
    cursor = until(Cursor.start(part(*steps)), actions.Parallel, items=[*range(items)], **answers)
    return cursor, cursor.action


@given(st.randoms(use_true_random=False), st.lists(st.booleans(), max_size=60))
def test_fifty_items_three_at_a_time_are_done_once_each_in_any_order_through_stops_and_restarts(
    random: Any, stops: list[bool]
) -> None:
    main = part(tasks(max_parallel=3), say("after"))
    cursor = until(Cursor.start(main), actions.Parallel, items=[*range(50)])
    running: list[int] = []
    begun: Counter[int] = Counter()
    while isinstance(action := cursor.action, actions.Parallel):
        waiting = [index for index in action.todo if index not in running]
        if stops and stops.pop():
            while running and isinstance(cursor.action, actions.Parallel):
                cursor = cursor.after(actions.TaskEnded(action.batch, running.pop()))
            if isinstance(cursor.action, actions.Parallel):
                cursor = again(cursor, main).resumed()
                cursor = until(cursor, actions.Parallel)
            continue
        while waiting and len(running) < action.max_parallel:
            running.append(waiting.pop(0))
            begun[running[-1]] += 1
        done = running.pop(random.randrange(len(running)))
        cursor = again(cursor.after(actions.TaskEnded(action.batch, done)), main)
    assert not running
    assert begun == Counter(range(50))
    assert isinstance(until(cursor, actions.Execute).action, actions.Execute)


def test_the_action_has_the_items_what_is_left_and_how_many_at_a_time() -> None:
    loop = {"type": "foreach", "id": "f", "items": [1], "body": [tasks(max_parallel="{{ n }}")]}
    cursor = Cursor.start(part(loop)).after(actions.Passed()).after(actions.Answer(["outer"]))
    cursor = until(cursor, actions.Parallel, items=["a", "b"], max_parallel=7)
    action: Any = cursor.action
    assert (action.items, action.todo, action.max_parallel) == (("a", "b"), (0, 1), 7)
    assert action.scope.names["item"] == "outer"
    after: Any = cursor.after(actions.TaskEnded(action.batch, 0)).action
    assert after.todo == (1,)


def test_a_task_that_is_told_twice_counts_once_and_one_of_nobody_changes_nothing() -> None:
    cursor, action = started(tasks())
    once = cursor.after(actions.TaskEnded(action.batch, 1))
    assert once.after(actions.TaskEnded(action.batch, 1)) == once
    assert once.after(actions.TaskEnded(action.batch, 1, ERROR)) == once
    assert once.after(actions.TaskEnded(99, 0)) == once


def test_the_first_failed_task_fails_the_step_and_is_named() -> None:
    cursor, action = started(tasks(), say("never"))
    end: Any = cursor.after(actions.TaskEnded(action.batch, 2, ERROR)).action
    assert (end.status, end.error) == ("failed", {"message": "it failed", "task": "p.2"})


def test_a_step_that_is_tried_again_does_only_what_is_not_done_and_counts_what_came_late() -> None:
    cursor, action = started(tasks(on_error="retry", retry_delay=5))
    cursor = cursor.after(actions.TaskEnded(action.batch, 0)).after(actions.TaskEnded(action.batch, 1, ERROR))
    assert isinstance(cursor.action, actions.Delay)
    # Its sibling was already done when it was to be ended.
    cursor = again(cursor.after(actions.TaskEnded(action.batch, 2)), part(tasks(on_error="retry", retry_delay=5)))
    second: Any = until(cursor, actions.Parallel).action
    assert second.todo == (1,)
    assert until(cursor, actions.Parallel).after(actions.TaskEnded(action.batch, 1)).action == DONE


def test_a_step_that_is_tried_again_counts_the_failures_of_its_tasks_anew_but_a_resume_does_not() -> None:
    errors = {"strategy": "retry_failed", "max_retries": 1}
    step = tasks(on_error="retry", retry_count=1, retry_delay=0, on_sub_agent_error=errors)
    cursor, action = started(step, items=1)
    failed = actions.TaskEnded(action.batch, 0, ERROR)
    second_attempt = until(cursor.after(failed).after(failed), actions.Parallel)
    once_more = second_attempt.after(failed)
    assert isinstance(once_more.action, actions.Parallel)
    assert once_more.after(failed).is_over
    assert until(once_more.resumed(), actions.Parallel).after(failed).is_over
    forgiven = until(once_more.resumed(reset_error_counts=True), actions.Parallel)
    assert isinstance(forgiven.after(failed).action, actions.Parallel)


def test_a_run_that_does_not_wait_goes_on_with_the_first_and_ends_with_the_last() -> None:
    main = part({"type": "conditional", "condition": True, "then": [tasks(wait_for_all=False)]}, say("a"), say("b"))
    cursor = until(Cursor.start(main), actions.Parallel, items=[1, 2, 3])
    cursor = again(cursor.after(actions.TaskEnded(0, 1)), main)
    cursor = until(cursor, actions.Execute)
    assert [each.todo for each in cursor.background] == [(0, 2)]
    cursor = again(cursor.after(actions.TaskEnded(0, 0)), main)
    assert isinstance(cursor.action, actions.Execute)
    cursor = until(cursor, actions.Parallel)
    waiting: Any = again(cursor, main).action
    assert waiting.todo == (2,)
    over = again(cursor, main).after(actions.TaskEnded(0, 2))
    assert over.action == DONE
    assert over.background == ()


@pytest.mark.parametrize(("on_error", "status"), [("fail", "failed"), ("continue", "completed")])
def test_a_task_that_fails_in_the_background_fails_the_run_at_its_end_unless_the_step_goes_on(
    on_error: str, status: str
) -> None:
    main = part(tasks(wait_for_all=False, on_error=on_error), say("a"))
    cursor = until(Cursor.start(main), actions.Parallel, items=[1, 2]).after(actions.TaskEnded(0, 0))
    cursor = again(cursor.after(actions.TaskEnded(0, 1, ERROR)), main)
    end: Any = until(cursor, actions.Execute).after(actions.Completed())
    assert end.action.status == status
    if status == "failed":
        left: Any = again(end, main).resumed()
        assert left.action.todo == (1,)
        assert left.after(actions.TaskEnded(0, 1)).action == DONE


def test_a_failed_step_waits_for_the_background_before_the_run_ends() -> None:
    main = part(tasks(wait_for_all=False), say("a"))
    cursor = until(Cursor.start(main), actions.Parallel, items=[1, 2]).after(actions.TaskEnded(0, 0))
    cursor = until(cursor, actions.Execute).after(actions.ActionFailed(ERROR))
    assert isinstance(cursor.action, actions.Parallel)
    cursor = cursor.after(actions.TaskEnded(0, 1))
    assert cursor.action == actions.Finished("failed", "it failed", ERROR)
    resumed: Any = cursor.resumed()
    assert (resumed.steps, resumed.background) == (("a",), ())


def test_tasks_in_the_background_whose_step_is_gone_are_refused_by_name() -> None:
    main = part(tasks(wait_for_all=False), say("a"))
    cursor = until(Cursor.start(main), actions.Parallel, items=[1, 2]).after(actions.TaskEnded(0, 0))
    with pytest.raises(DefinitionChanged, match="step 'p', where the run stands"):
        again(cursor, part(say("a")))


def test_tasks_inside_a_task_take_no_stop() -> None:
    cursor = until(Cursor.start(StepList(part(tasks()).steps)), actions.Parallel, items=[1])
    assert isinstance(cursor.action, actions.Parallel)
    assert not cursor.action.stoppable
