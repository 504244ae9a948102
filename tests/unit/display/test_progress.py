"""What is known of a run from its events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.display.progress import Progress
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent


class Story:
    """Events one after the other, a second apart."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.now = 1000.0

    def tell(self, kind: str, /, **data: Any) -> Progress:
        self.progress.on_event(RunEvent("run", kind, self.now, data))
        self.now += 1
        return self.progress


def loop_of(story: Story) -> tuple[str, int, int | None]:
    assert story.progress.loop is not None
    return story.progress.loop.id, story.progress.loop.number, story.progress.loop.of


@pytest.fixture
def story() -> Story:
    story = Story()
    story.tell(kinds.RUN_STARTED, workflow="iterate", inputs={"mode": "loop"})
    return story


def test_the_time_between_an_end_and_a_resume_is_not_counted(story: Story) -> None:
    story.now = 1100
    story.tell(kinds.RUN_ENDED, status="stopped")
    assert story.progress.elapsed_s(9999) == 100
    story.now = 5000
    story.tell(kinds.RUN_RESUMED, previous_status="stopped")
    assert story.progress.elapsed_s(5010) == 110
    assert story.progress.status == "running"


def test_an_owner_that_died_worked_until_the_last_that_was_heard_of_it(story: Story) -> None:
    story.tell(kinds.AGENT_STARTED, agent_id="a", name="claude", pid=1)
    story.now = 1060
    story.tell(kinds.ITERATION, step="loop", iteration=1, of=5)
    story.now = 9000
    story.tell(kinds.RUN_RESUMED, previous_status="interrupted")
    assert story.progress.elapsed_s(9001) == 61
    assert story.progress.agents.running == {}


def test_a_loop_behind_another_takes_its_place(story: Story) -> None:
    story.tell(kinds.ITERATION, step="first", iteration=1, of=3)
    story.tell(kinds.STEP_COMPLETED, step="first[0]/note", id="note", type="state_update")
    story.tell(kinds.ITERATION, step="second", iteration=1, of=4)
    story.tell(kinds.STEP_STARTED, step="second[0]/work", id="work", type="agent")
    assert loop_of(story) == ("second", 1, 4)
    story.tell(kinds.STEP_STARTED, step="between", id="between", type="agent")
    story.tell(kinds.ITERATION, step="third", iteration=1, of=5)
    assert loop_of(story) == ("third", 1, 5)


def test_after_a_resume_inside_of_an_inner_loop_the_outer_one_is_found(story: Story) -> None:
    story.tell(kinds.ITERATION, step="inner", iteration=4, of=9)
    story.tell(kinds.STEP_STARTED, step="outer[6]/inner[3]/work", id="work", type="agent")
    assert loop_of(story) == ("outer", 7, None)
    story.tell(kinds.ITERATION, step="outer", iteration=8, of=20)
    assert loop_of(story) == ("outer", 8, 20)


@pytest.mark.parametrize(
    ("end", "done"),
    [
        ({"status": "stopped"}, 2),
        ({"status": "completed"}, 2),
        ({"status": "failed", "limit": "max_iterations"}, 2),
        ({"status": "aborted"}, 1),
        ({"status": "failed"}, 1),
    ],
)
def test_whether_the_last_iteration_was_complete_is_known_from_the_end(
    story: Story, end: dict[str, str], done: int
) -> None:
    story.tell(kinds.ITERATION, step="loop", iteration=1, of=2)
    story.tell(kinds.ITERATION, step="loop", iteration=2, of=2)
    story.tell(kinds.RUN_ENDED, **end)
    assert story.progress.loop is not None
    assert story.progress.loop.done == done


def test_tasks_are_counted_against_the_items_of_their_step(story: Story) -> None:
    story.tell(kinds.EVALUATED, step="each", field="items", outcome=["answer", [1, 2, 3]])
    for index in range(3):
        story.tell(kinds.TASK_STARTED, task=f"each.{index}", step="each", index=index)
    story.tell(kinds.TASK_ENDED, task="each.0")
    story.tell(kinds.TASK_ENDED, task="each.1", error={"message": "no"}, will_retry=True)
    tasks = story.progress.tasks
    assert tasks.count() == (1, 0, 3)
    assert [(task.id, task.state) for task in tasks.rows(9)] == [
        ("each.2", "running"),
        ("each.1", "again"),
        ("each.0", "done"),
    ]
    story.tell(kinds.TASK_STARTED, task="each.1", step="each", index=1)
    story.tell(kinds.TASK_ENDED, task="each.1", error={"message": "still no"})
    assert tasks.count() == (2, 1, 3)


def test_what_happens_in_a_task_is_shown_in_its_row_and_not_as_the_runs(story: Story) -> None:
    story.tell(kinds.STEP_STARTED, step="each", id="each", type="parallel_foreach")
    story.tell(kinds.TASK_STARTED, task="each.0", step="each", index=0)
    story.tell(kinds.STEP_STARTED, step="each.0/lint", id="lint", type="shell_command", task="each.0")
    (task,) = story.progress.tasks.running.values()
    assert (story.progress.step, task.doing) == ("each", "lint")
    story.tell(kinds.ITERATION, step="retry", iteration=2, task="each.0")
    assert (story.progress.loop, task.doing) == (None, "iteration 2")


def test_cost_and_tokens_are_those_of_all_agents_living_or_not(story: Story) -> None:
    crew = story.progress.agents
    assert (crew.cost_usd, crew.tokens) == (None, 0)
    story.tell(kinds.AGENT_STARTED, agent_id="a", name="claude", pid=1, step="one")
    used = {"activity": "usage", "cost_usd": 0.25, "tokens": {"input": 10, "output": 5, "cached": 9}}
    story.tell(kinds.ACTIVITY, agent_id="a", **used)
    assert (crew.cost_usd, crew.tokens) == (0.25, 15)
    story.tell(kinds.AGENT_ENDED, agent_id="a")
    assert (crew.cost_usd, crew.tokens) == (0.25, 15)
    story.tell(kinds.USAGE, step="one", cost_usd=0.5, tokens=40)
    assert (crew.cost_usd, crew.tokens) == (0.5, 40)
    story.tell(kinds.AGENT_STARTED, agent_id="b", name="codex", pid=2, step="two")
    story.tell(kinds.ACTIVITY, agent_id="b", activity="usage", cost_usd=None, tokens={"input": 7, "output": 0})
    story.tell(kinds.USAGE, step="two", cost_usd=None, tokens=7)
    assert (crew.cost_usd, crew.tokens) == (0.5, 47)


def test_a_flood_of_output_keeps_the_last_lines_and_nothing_else(story: Story) -> None:
    story.tell(kinds.AGENT_OUTPUT, agent_id="a", stream="stdout", lines=[f"line {number}" for number in range(100_000)])
    story.tell(kinds.AGENT_OUTPUT, agent_id="a", stream="stdout", lines=["x" * (1 << 20)])
    assert len(story.progress.agents.lines) == 200
    assert story.progress.agents.lines[-2].text == "line 99999"
    assert len(story.progress.agents.lines[-1].text) == 2048


def test_thousands_of_tasks_agents_and_lists_do_not_pile_up(story: Story) -> None:
    for number in range(5_000):
        story.tell(kinds.TASK_STARTED, task=f"each.{number}", step="each", index=number)
        story.tell(kinds.AGENT_STARTED, agent_id=f"a{number}", name="claude", pid=1, task=f"each.{number}")
        story.tell(kinds.AGENT_ENDED, agent_id=f"a{number}")
        story.tell(kinds.TASK_ENDED, task=f"each.{number}")
        story.tell(kinds.EVALUATED, step=f"loop[{number}]/for", field="items", outcome=["answer", [1]])
    progress = story.progress
    assert progress.tasks.count()[0] == 5_000
    assert len(progress.tasks.ended) + len(progress.agents.running) + len(progress.tasks._sizes) <= 200
    assert len(progress.agents._names) <= 1000
    for batch in range(5_000):
        story.tell(kinds.TASK_STARTED, task="each.0", step="each", batch=batch)
        story.tell(kinds.TASK_ENDED, task="each.0")
    assert len(progress.tasks._batches) <= 2


_KINDS = [value for name, value in vars(kinds).items() if name.isupper() and isinstance(value, str)]
_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text() | st.none())
_NAMES = ["step", "id", "task", "agent_id", "lines", "tokens", "cost_usd", "error", "iteration", "of", "outcome"]
_NAMES += ["activity", "until", "what", "name", "thread", "batch", "round", "stream"]
_NAMES += ["field", "status", "reason", "limit", "signal", "source", "text", "prompt", "workflow", "inputs", "pid"]


@given(st.lists(st.tuples(st.sampled_from(_KINDS), st.dictionaries(st.sampled_from(_NAMES), _VALUES))))
def test_no_event_whatever_it_holds_raises(events: list[tuple[str, dict[str, Any]]]) -> None:
    story = Story()
    for kind, data in events:
        story.tell(kind, **data)
    assert story.progress.status


def test_a_stop_and_a_question_are_shown_until_they_are_over(story: Story) -> None:
    story.tell(kinds.SIGNAL, signal="stop", source="keyboard", path=None, reason="requested at the terminal")
    assert story.progress.signals["stop"] == ("requested at the terminal", "keyboard", "")
    story.tell(kinds.SIGNAL, signal="stop", cancelled=True)
    assert story.progress.signals == {}
    story.tell(kinds.QUESTION, step="ask", prompt="Which branch?")
    assert story.progress.waits_for == "Which branch?"
    story.tell(kinds.ANSWERED, step="ask", value="main")
    assert story.progress.waits_for == ""
