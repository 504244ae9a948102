"""Plain lines for a pipe."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sidecar.display.lines import PlainLines
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent


def lines(*events: tuple[str, dict[str, Any]], quiet: bool = False) -> list[str]:
    """What is written, without the times, after it was made sure that each line has one."""
    written: list[str] = []
    plain = PlainLines(written.append, quiet)
    for at, (kind, data) in enumerate(events):
        plain.on_event(RunEvent("RUN", kind, float(at), data))
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d .*\n", line) for line in written)
    return [line[9:-1] for line in written]


@pytest.mark.parametrize(
    ("kind", "data", "told"),
    [
        (kinds.RUN_STARTED, {"workflow": "iterate"}, ["started iterate, run RUN"]),
        (
            kinds.RUN_RESUMED,
            {"workflow": "iterate", "previous_status": "stopped"},
            ["resumed iterate (was: stopped), run RUN"],
        ),
        (kinds.RUN_ENDED, {"status": "aborted", "reason": "enough"}, ["aborted: enough"]),
        (kinds.RUN_ENDED, {"status": "failed", "limit": "max_cost_usd"}, ["failed (limit: max_cost_usd)"]),
        (kinds.STEP_STARTED, {"step": "a", "id": "a", "type": "agent", "attempt": 2}, ["step a: agent, attempt 2"]),
        (kinds.STEP_STARTED, {"step": "a", "id": "a", "type": "state_update"}, []),
        (kinds.STEP_FAILED, {"step": "a", "id": "a", "error": {"message": "exit 2"}}, ["step a: failed: exit 2"]),
        (kinds.WORKFLOW_RETRIED, {"round": 2}, ["from the start again, round 2"]),
        (kinds.ITERATION, {"step": "loop", "iteration": 2, "of": 50}, ["loop: iteration 2 of 50"]),
        (kinds.ITERATION, {"step": "loop", "iteration": 2}, ["loop: iteration 2"]),
        (kinds.TASK_STARTED, {"task": "each.1"}, ["task each.1: started"]),
        (kinds.AGENT_STARTED, {"agent_id": "1", "name": "claude", "pid": 7}, ["claude: started, pid 7"]),
        (kinds.MESSAGE, {"text": "one\ntwo"}, ["one", "two"]),
        (kinds.WARNING, {"text": "stale file"}, ["warning: stale file"]),
        (kinds.QUESTION, {"prompt": "Which?"}, ["waits for an answer: Which? (sidecar answer RUN VALUE)"]),
        (
            kinds.GATE,
            {"stage": "plan"},
            ["paused for approval of plan (sidecar resume RUN --approve, or --feedback TEXT to send it back)"],
        ),
        (kinds.REDIRECTED, {"text": "use tabs"}, ["redirected: use tabs"]),
        (
            kinds.SIGNAL,
            {"signal": "stop", "source": "file", "path": "/p/.stop", "reason": "red"},
            ["stop requested, after this iteration, by file /p/.stop: red"],
        ),
        (kinds.SIGNAL, {"signal": "stop", "cancelled": True}, ["stop cancelled"]),
        (kinds.AGENT_OUTPUT, {"agent_id": "?", "lines": ["a \033[31mred\033[0m b\a"]}, ["| a red b"]),
        (kinds.AGENT_OUTPUT, {"agent_id": "1", "lines": ["x"], "dropped": 9}, ["| (9 lines left out)", "| x"]),
        (
            kinds.AGENT_ENDED,
            {"name": "claude", "reason": "abort", "exit_code": -9, "survivors": 2},
            ["claude: ended: abort, 2 processes survived"],
        ),
        (
            kinds.TASK_ENDED,
            {"task": "t", "error": {"message": "no"}, "will_retry": True},
            ["task t: failed, will be retried: no"],
        ),
        (kinds.EVALUATED, {"step": "a", "field": "items", "outcome": []}, []),
        ("something new", {}, []),
    ],
)
def test_each_event_is_told_in_words(kind: str, data: dict[str, Any], told: list[str]) -> None:
    assert lines((kind, data)) == told


def test_an_agent_is_known_by_its_name_from_start_to_end() -> None:
    agent = {"agent_id": "1"}
    assert lines(
        (kinds.AGENT_STARTED, {**agent, "name": "claude", "pid": 7}),
        (kinds.AGENT_OUTPUT, {**agent, "lines": ["hello", "world"]}),
        (kinds.ACTIVITY, {**agent, "activity": "tool_started", "name": "Edit"}),
        (kinds.ACTIVITY, {**agent, "activity": "tool_started", "name": "Edit"}),
        (kinds.AGENT_ENDED, {**agent, "reason": "exited", "exit_code": 0, "duration_s": 61.5}),
        (kinds.USAGE, {"step": "loop[0]/work", "cost_usd": 0.25, "tokens": 1200}),
    )[1:] == [
        "claude | hello",
        "claude | world",
        "claude: Edit",
        "claude: exited with 0, after 1m 01s",
        "step work: $0.2500, 1.2k tokens",
    ]


def test_steps_and_tasks_tell_how_long_they_took() -> None:
    step = {"step": "a", "id": "a", "type": "agent"}
    told = lines((kinds.STEP_STARTED, step), (kinds.TASK_STARTED, {"task": "t"}), (kinds.TASK_ENDED, {"task": "t"}))
    assert told[-1] == "task t: done in 1s"
    told = lines((kinds.STEP_STARTED, step), (kinds.MESSAGE, {}), (kinds.STEP_COMPLETED, step))
    assert told[-1] == "step a: done in 2s"


def test_quiet_tells_only_what_needs_a_person() -> None:
    everything = [
        (kind, {"prompt": "Which?", "text": "x"}) for kind in (kinds.RUN_STARTED, kinds.MESSAGE, kinds.QUESTION)
    ]
    assert lines(*everything, quiet=True) == ["waits for an answer: Which? (sidecar answer RUN VALUE)"]


def test_of_a_command_that_succeeds_only_its_words_are_told() -> None:
    command = {"agent_id": "1", "name": "lint", "step": "loop[0]/lint", "task": "each.1"}
    events: list[tuple[str, dict[str, Any]]] = [(kinds.AGENT_STARTED, {**command, "pid": 7})]
    events.append((kinds.AGENT_OUTPUT, {**command, "lines": ["fine"]}))
    assert lines(*events, (kinds.AGENT_ENDED, {**command, "reason": "exited", "exit_code": 0})) == [
        "lint of each.1 | fine"
    ]
    assert lines(*events, (kinds.AGENT_ENDED, {**command, "reason": "exited", "exit_code": 2}))[-1] == (
        "lint of each.1: exited with 2"
    )


def test_a_step_with_tasks_is_told_once_and_before_them_each_time() -> None:
    step = {"step": "loop[0]/each", "id": "each", "type": "parallel_foreach"}
    round_ = [
        (kinds.TASK_STARTED, {"task": "each.0", "step": "each", "thread": ""}),
        (kinds.TASK_STARTED, {"task": "each.1", "step": "each", "thread": ""}),
        (kinds.STEP_STARTED, step),
        (kinds.STEP_COMPLETED, step),
    ]
    told = ["step each: parallel_foreach", "task each.0: started", "task each.1: started", "step each: done in 1s"]
    assert lines(*round_, *round_) == told * 2
    inner = (kinds.TASK_STARTED, {"task": "each.0/inner.0", "step": "inner", "thread": "each.0#1"})
    begun = (kinds.STEP_STARTED, {"step": "each.0/inner", "id": "inner", "type": "parallel_foreach", "task": "each.0"})
    assert lines(inner, begun) == ["step inner of task each.0: parallel_foreach", "task each.0/inner.0: started"]
