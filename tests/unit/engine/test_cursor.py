"""What is next: loops, jumps, branches, includes, boundaries, and a resume with the same or another definition."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.engine.cursor import actions
from sidecar.engine.cursor.moves import Cursor
from sidecar.engine.cursor.position import Scope, StepList
from sidecar.errors import DefinitionChanged
from sidecar.model.steps import Loop
from sidecar.model.workflow import Workflow, numbered

ERROR = {"message": "it failed"}


def say(step_id: str, **keys: Any) -> dict[str, Any]:
    return {"type": "user_message", "id": step_id, "message": "m", **keys}


def part(*steps: dict[str, Any], **keys: Any) -> StepList:
    return StepList.of_workflow(numbered(Workflow.model_validate({"steps": list(steps), **keys})))


class Play:
    """Does what the cursor asks, and writes it down and reads it again before each action.

    `answers` are by `<step id>.<field>`: a value, or a list of values in a tuple, one for each time. `included` are by
    the path to them.
    """

    def __init__(
        self,
        main: StepList,
        answers: dict[str, Any] | None = None,
        included: dict[tuple[str, ...], StepList] | None = None,
        failing: dict[str, int] | None = None,
    ) -> None:
        self.failing = failing or {}
        self.parts = {(): main, **(included or {})}
        self.answers = {
            key: list(value) if isinstance(value, tuple) else value for key, value in (answers or {}).items()
        }
        self.cursor = Cursor.start(main)
        self.ran: list[str] = []
        self.scopes: list[dict[str, Any]] = []
        self.boundaries: list[tuple[str, str]] = []

    def written_and_read(self, main: StepList | None = None) -> Cursor:
        known = self.parts if main is None else {**self.parts, (): main}
        return Cursor.restore(json.loads(json.dumps(self.cursor.to_json())), known.__getitem__)

    def outcome(self, action: Any) -> actions.Outcome:
        match action:
            case actions.Boundary():
                self.boundaries.append((action.step.id, action.kind))
                return actions.Passed()
            case actions.Evaluate():
                answer = self.answers[f"{action.step.id}.{action.field}"]
                return actions.Answer(answer.pop(0) if isinstance(answer, list) and action.field != "items" else answer)
            case actions.Include():
                return actions.Included(self.parts[(*action.scope.path, action.step.id)])
            case actions.Execute():
                self.ran.append(action.step.id)
                self.scopes.append(action.scope.names)
                self.failing[action.step.id] = self.failing.get(action.step.id, 0) - 1
                if self.failing[action.step.id] >= 0:
                    return actions.ActionFailed(ERROR)
        return actions.Completed()

    def until(self, kind: type, step_id: str = "") -> Any:
        """The first action of that kind, for that step; it is not done yet."""
        while not (isinstance(self.cursor.action, kind) and step_id in ("", self.cursor.steps[-1])):
            assert not self.cursor.is_over, f"over without {kind.__name__}: {self.cursor.action}"
            self.cursor = self.written_and_read()
            self.cursor = self.cursor.after(self.outcome(self.cursor.action))
        return self.cursor.action

    def to_the_end(self) -> Any:
        while not self.cursor.is_over:
            self.cursor = self.written_and_read()
            self.cursor = self.cursor.after(self.outcome(self.cursor.action))
        return self.cursor.action


DONE = actions.Finished("completed")


# Loops


def test_a_while_whose_condition_holds_after_its_maximum_reaches_its_limit_and_does_so_again_when_resumed() -> None:
    loop = {"type": "while", "id": "w", "condition": "{{ c }}", "max_iterations": 3, "body": [say("a")]}
    play = Play(part(loop, say("after")), {"w.condition": (True,) * 5})
    end = play.to_the_end()
    assert isinstance(end, actions.LimitReached)
    assert (end.step.id, end.limit) == ("w", 3)
    assert play.ran == ["a"] * 3
    play.cursor = play.cursor.resumed()
    assert isinstance(play.to_the_end(), actions.LimitReached)
    assert play.ran == ["a"] * 3


def test_a_while_without_a_maximum_has_a_hundred_iterations_even_with_nothing_in_it() -> None:
    play = Play(part({"type": "while", "id": "w", "condition": True, "body": []}))
    end = play.to_the_end()
    assert isinstance(end, actions.LimitReached)
    assert end.limit == 100
    assert play.cursor.state.iterations == 100


def test_a_maximum_that_is_a_template_is_asked_for_once_and_has_to_be_a_number() -> None:
    loop = {"type": "while", "id": "w", "condition": "{{ c }}", "max_iterations": "{{ n }}", "body": [say("a")]}
    play = Play(part(loop), {"w.max_iterations": (2,), "w.condition": (True,) * 3})
    assert isinstance(play.to_the_end(), actions.LimitReached)
    assert play.ran == ["a", "a"]
    for wrong in (0, "many", True, None):
        play = Play(part(loop), {"w.max_iterations": (wrong,)})
        end = play.to_the_end()
        assert end.status == "failed"
        assert "`max_iterations` of step 'w'" in end.message


def test_a_foreach_gives_item_index_and_loop_to_its_steps_and_the_inner_loop_wins() -> None:
    inner = {"type": "foreach", "id": "in", "items": "{{ y }}", "steps": [say("a")]}
    outer = {"type": "foreach", "id": "out", "items": "{{ x }}", "body": [inner, say("b")]}
    play = Play(part(outer, say("after")), {"out.items": ["p", "q"], "in.items": [{"n": 1}]})
    assert play.to_the_end() == DONE
    assert play.ran == ["a", "b", "a", "b", "after"]
    assert play.scopes == [
        {"item": {"n": 1}, "index": 0, "loop": {"index": 0, "length": 1}},
        {"item": "p", "index": 0, "loop": {"index": 0, "length": 2}},
        {"item": {"n": 1}, "index": 0, "loop": {"index": 0, "length": 1}},
        {"item": "q", "index": 1, "loop": {"index": 1, "length": 2}},
        {},
    ]


def test_a_while_inside_a_foreach_leaves_the_item_and_counts_in_loop_also_for_its_condition() -> None:
    inner = {"type": "while", "id": "w", "condition": "{{ c }}", "body": [say("a")]}
    outer = {"type": "foreach", "id": "out", "items": "{{ x }}", "body": [inner]}
    play = Play(part(outer), {"out.items": ["p"], "w.condition": (True, True, False)})
    seen = []
    for _ in range(3):
        seen.append(play.until(actions.Evaluate, "w").scope.names)
        play.cursor = play.cursor.after(play.outcome(play.cursor.action))
    assert [names["loop"] for names in seen] == [{"index": 0}, {"index": 1}, {"index": 2}]
    assert play.to_the_end() == DONE
    assert play.scopes == [{"item": "p", "index": 0, "loop": {"index": index}} for index in (0, 1)]


@pytest.mark.parametrize(("items", "shown"), [("abc", "'abc'"), (None, "null"), ({"a": True}, '{"a": true}')])
def test_items_that_are_no_list_are_an_error_of_the_step(items: Any, shown: str) -> None:
    play = Play(part({"type": "foreach", "id": "f", "items": "{{ x }}", "body": []}), {"f.items": items})
    assert play.to_the_end().message == f"`items` of step 'f' has to be a list, not {shown}"


def test_a_jump_never_leaves_the_workflow_that_it_stands_in() -> None:
    loop = {
        "type": "foreach",
        "id": "f",
        "items": "{{ x }}",
        "body": [{"type": "include_workflow", "id": "inc", "workflow": "x"}],
    }
    play = Play(part(loop), {"f.items": [1]}, {("inc",): part({"type": "break", "id": "b"})})
    end = play.to_the_end()
    assert (end.status, "'b' is outside of any loop" in end.message) == ("failed", True)


# Branches, exits, includes


def test_a_condition_is_told_as_a_truth_because_the_truth_of_javascript_is_another() -> None:
    play = Play(part({"type": "conditional", "id": "c", "condition": "{{ x }}", "then": []}), {"c.condition": ("yes",)})
    assert "has to be true or false" in play.to_the_end().message


def test_includes_three_deep_have_frames_of_their_own_and_see_no_loop_outside() -> None:
    def including(step_id: str) -> dict[str, Any]:
        return {"type": "include_workflow", "id": step_id, "workflow": "x"}

    loop = {"type": "foreach", "id": "f", "items": "{{ i }}", "body": [including("one"), say("z")]}
    included = {
        ("one",): part(including("two"), say("y")),
        ("one", "two"): part(including("three")),
        ("one", "two", "three"): part(say("deep")),
    }
    play = Play(part(loop), {"f.items": ["p"]}, included)
    deep = play.until(actions.Execute, "deep")
    assert deep.scope == Scope(("one", "two", "three"), {})
    assert play.cursor.steps == ("f", "one", "two", "three", "deep")
    left = [play.until(actions.Leave, each).scope.path for each in ("three", "two", "one")]
    assert left == [("one", "two"), ("one",), ()]
    assert play.to_the_end() == DONE
    assert play.ran == ["deep", "y", "z"]


# Boundaries


def test_an_abort_is_looked_for_before_every_step_and_a_stop_at_the_top_and_between_outermost_iterations() -> None:
    inner = {"type": "foreach", "id": "in", "items": "{{ y }}", "body": [say("a")]}
    outer = {"type": "foreach", "id": "out", "items": "{{ x }}", "body": [inner]}
    branch = {"type": "conditional", "id": "c", "condition": True, "then": [outer]}
    play = Play(part(say("first"), branch), {"out.items": [1, 2], "in.items": [1]})
    assert play.to_the_end() == DONE
    iteration = [("out", "stop-and-abort"), ("in", "abort-only"), ("in", "abort-only"), ("a", "abort-only")]
    first = [("first", "stop-and-abort"), ("c", "stop-and-abort"), ("out", "abort-only")]
    assert play.boundaries == [*first, *iteration, *iteration]


def test_an_outermost_loop_of_an_included_workflow_takes_a_stop_but_its_steps_do_not() -> None:
    inside = part({"type": "foreach", "id": "f", "items": "{{ x }}", "body": []}, say("a"))
    play = Play(part({"type": "include_workflow", "id": "inc", "workflow": "x"}), {"f.items": [1]}, {("inc",): inside})
    play.to_the_end()
    abort_only, both = "abort-only", "stop-and-abort"
    assert play.boundaries == [("inc", both), ("f", abort_only), ("f", both), ("a", abort_only)]


def test_the_steps_of_a_task_take_no_stop_because_running_tasks_finish() -> None:
    loop = {"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("a")]}
    play = Play(StepList(part(loop).steps), {"f.items": [1]})
    play.to_the_end()
    assert {kind for _, kind in play.boundaries} == {"abort-only"}


def test_an_outcome_that_does_not_belong_to_the_action_is_refused() -> None:
    cursor = Cursor.start(part(say("a")))
    for wrong in (actions.Completed(), actions.Answer(1), actions.ActionFailed(ERROR), actions.Included(part())):
        with pytest.raises(TypeError, match="is no outcome of Boundary"):
            cursor.after(wrong)
    over = cursor.after(actions.Passed()).after(actions.Completed())
    with pytest.raises(TypeError, match="is no outcome of Finished"):
        over.after(actions.Passed())


# Counting


def loops(cursor: Cursor) -> dict[str, int]:
    """The loops that a run is in, with the index of their iteration."""
    return {frame.step.id: frame.index for frame in cursor.state.frames if isinstance(frame.step, Loop)}


def test_a_cursor_has_the_steps_and_the_iteration_of_each_loop_that_it_is_in() -> None:
    inner = {"type": "while", "id": "w", "condition": "{{ c }}", "body": [say("a")]}
    outer = {"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("first"), inner]}
    play = Play(part(outer), {"f.items": ["p", "q", "r"], "w.condition": (False, True, True, False, False)})
    for _ in range(2):
        play.until(actions.Execute, "a")
        seen = (play.cursor.steps, loops(play.cursor), play.cursor.state.iterations)
        play.cursor = play.cursor.after(actions.Completed())
    assert seen == (("f", "w", "a"), {"f": 1, "w": 1}, 4)
    play.until(actions.Boundary, "f")
    assert loops(play.cursor) == {"f": 2}
    play.to_the_end()
    assert (play.cursor.state.iterations, play.cursor.state.transitions) == (5, 5)


# Another definition


def test_a_changed_definition_is_taken_where_the_step_is_still_there() -> None:
    loop = {"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("a"), say("b")]}
    play = Play(part(loop), {"f.items": [1, 2]})
    play.until(actions.Execute, "b")
    longer = loop | {"body": [say("a"), say("also-new"), say("b"), say("last")]}
    changed = part(say("new"), longer, say("end"))
    play.parts[()] = changed
    play.cursor = play.written_and_read().resumed()
    assert play.to_the_end() == DONE
    assert play.ran == ["a", "b", "last", "a", "also-new", "b", "last", "end"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ([say("a")], "'f'"),
        ([{"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("a")]}], "'b'"),
        ([{"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("a")]}, say("b")], "'b'"),
        ([{"type": "while", "id": "f", "condition": True, "body": [say("a"), say("b")]}], "'f'"),
        ([{"type": "foreach", "id": "f", "items": "{{ x }}", "body": [{"type": "exit", "id": "b"}]}], "'b'"),
    ],
)
def test_a_changed_definition_without_the_step_is_refused_by_name(changed: list[dict[str, Any]], named: str) -> None:
    loop = {"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("a"), say("b")]}
    play = Play(part(loop), {"f.items": [1, 2]})
    play.until(actions.Execute, "b")
    with pytest.raises(DefinitionChanged, match=f"step {named}, where the run stands"):
        play.written_and_read(part(*changed))


def test_a_maximum_that_became_a_template_is_asked_for_and_a_higher_one_takes_a_run_past_its_limit() -> None:
    def loop(most: Any) -> StepList:
        return part({"type": "while", "id": "w", "condition": "{{ c }}", "max_iterations": most, "body": [say("a")]})

    for most in (3, "{{ n }}"):
        play = Play(loop(1), {"w.condition": (True, True, True, True, False, False), "w.max_iterations": (3,)})
        assert isinstance(play.to_the_end(), actions.LimitReached)
        play.parts[()] = loop(most)
        play.cursor = play.written_and_read().resumed()
        assert play.to_the_end() == DONE
        assert 2 <= len(play.ran) <= 3


@pytest.mark.parametrize(("status", "ends"), [("success", "completed"), ("failed", "failed")])
def test_an_exit_ends_the_run_with_its_status_and_message(status: str, ends: str) -> None:
    leaving = {"type": "exit", "id": "x", "status": status, "message": "because {{ y }}"}
    end = Play(part(leaving, say("never")), {"x.message": ("because of it",)}).to_the_end()
    assert (end.status, end.message) == (ends, "because of it")


# Resuming


def test_a_failed_run_is_resumed_at_the_step_that_failed_however_deep_it_stands() -> None:
    inside = part(say("a"), {"type": "foreach", "id": "f", "items": "{{ x }}", "body": [say("b"), say("c")]})
    including = {"type": "include_workflow", "id": "inc", "workflow": "x"}
    play = Play(part(including, say("d")), {"f.items": [1, 2]}, {("inc",): inside}, failing={"c": 1})
    assert play.to_the_end() == actions.Finished("failed", "it failed", ERROR)
    play.cursor = play.cursor.resumed()
    assert isinstance(play.cursor.action, actions.Boundary)
    assert play.to_the_end() == DONE
    assert play.ran == ["a", "b", "c", "c", "b", "c", "d"]
    assert play.cursor.resumed().action == DONE


def test_a_resume_keeps_the_count_of_failures_unless_told_otherwise() -> None:
    for reset, runs in ((False, 3), (True, 4)):
        play = Play(part(say("a", on_error="retry", retry_count=1, retry_delay=0)), failing={"a": 99})
        play.to_the_end()
        play.cursor = play.cursor.resumed(reset_error_counts=reset)
        assert play.to_the_end().status == "failed"
        assert len(play.ran) == runs
