"""Run events as spans."""

from __future__ import annotations

import json
from typing import Any

from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent
from sidecar.service import tracing
from sidecar.service.tracing import Spans, trace_id

RUN = ulid.new()
WRITTEN = "what somebody wrote"


def heard(*events: tuple[str, float, dict[str, Any]]) -> list[dict[str, Any]]:
    spans = Spans("/p", "machine")
    for kind, at, data in events:
        spans.hear(RunEvent(RUN, kind, at, data))
    return taken(spans)


def taken(spans: Spans) -> list[dict[str, Any]]:
    body = spans.take()
    assert body is not None
    ((resource,),) = body.values()
    (scope,) = resource["scopeSpans"]
    found: list[dict[str, Any]] = scope["spans"]
    return found


def named(spans: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in spans}


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values())) for entry in span["attributes"]}


WHOLE: list[tuple[str, float, dict[str, Any]]] = [
    (kinds.RUN_STARTED, 1.0, {"workflow": "w", "previous_status": "pending"}),
    (kinds.STEP_STARTED, 2.0, {"step": "all", "id": "all", "type": "parallel_foreach", "attempt": 1}),
    (kinds.TASK_STARTED, 3.0, {"task": "all.0", "step": "all", "index": 0}),
    (kinds.STEP_STARTED, 4.0, {"step": "all.0/ask", "id": "ask", "type": "agent", "attempt": 2, "task": "all.0"}),
    (kinds.AGENT_STARTED, 5.0, {"agent_id": "A", "name": "claude", "pid": 7, "step": "all.0/ask", "command": WRITTEN}),
    (kinds.AGENT_OUTPUT, 5.5, {"agent_id": "A", "lines": [WRITTEN]}),
    (kinds.AGENT_ENDED, 6.0, {"agent_id": "A", "reason": "timeout", "rung": "term", "exit_code": -15, "survivors": 0}),
    (kinds.STEP_FAILED, 7.0, {"step": "all.0/ask", "id": "ask", "type": "agent", "error": {"message": WRITTEN}}),
    (kinds.TASK_ENDED, 8.0, {"task": "all.0", "error": {"message": WRITTEN}}),
    (kinds.STEP_COMPLETED, 9.0, {"step": "all", "id": "all", "type": "parallel_foreach", "outcome": WRITTEN}),
    (kinds.MESSAGE, 9.5, {"text": WRITTEN}),
    (kinds.RUN_ENDED, 10.0, {"status": "completed", "reason": WRITTEN}),
]


def test_each_span_stands_inside_of_what_it_belongs_to() -> None:
    spans = named(heard(*WHOLE))
    around = {
        "parallel_foreach all": "run w",
        "task all.0": "parallel_foreach all",
        "agent ask": "task all.0",
        "agent claude": "agent ask",
    }
    assert set(spans) == {*around, "run w"}
    assert "parentSpanId" not in spans["run w"]
    for name, parent in around.items():
        assert spans[name]["parentSpanId"] == spans[parent]["spanId"], name
    assert {span["traceId"] for span in spans.values()} == {trace_id(RUN)}
    assert len({span["spanId"] for span in spans.values()}) == len(spans)


def test_a_span_tells_its_times_its_state_and_how_it_ended() -> None:
    spans = named(heard(*WHOLE))
    agent, step, run = spans["agent claude"], spans["agent ask"], spans["run w"]
    assert (agent["startTimeUnixNano"], agent["endTimeUnixNano"]) == ("5000000000", "6000000000")
    assert (agent["status"], step["status"], run["status"]) == ({"code": 2}, {"code": 2}, {"code": 1})
    assert attributes(agent) | {"sidecar.reason": "timeout", "sidecar.rung": "term"} == attributes(agent)
    assert attributes(step)["sidecar.attempt"] == "2"
    assert attributes(run) | {"sidecar.run_id": RUN, "sidecar.status": "completed"} == attributes(run)


def test_a_span_holds_nothing_that_an_agent_or_a_person_wrote() -> None:
    assert WRITTEN not in json.dumps(heard(*WHOLE))


def test_a_run_is_one_trace_whoever_executes_it() -> None:
    assert trace_id("00000000000000000000000000") == "0" * 32
    assert trace_id("7ZZZZZZZZZZZZZZZZZZZZZZZZZ") == "f" * 32
    assert trace_id("0000000000000000000000000J") == "0" * 30 + "12"


def test_what_is_under_way_when_the_run_ends_ends_with_it() -> None:
    spans = named(heard(*WHOLE[:5], (kinds.RUN_ENDED, 6.0, {"status": "aborted"})))
    assert set(spans) == {"run w", "parallel_foreach all", "task all.0", "agent ask", "agent claude"}
    assert attributes(spans["agent claude"])["sidecar.cut_off"] is True
    assert spans["run w"]["status"] == {"code": 2}


def test_what_began_before_anybody_listened_is_no_span_and_harms_none() -> None:
    spans = Spans("/p", "machine")
    for kind, at, data in WHOLE[6:]:
        spans.hear(RunEvent(RUN, kind, at, data))
    assert spans.take() is None


def test_where_nobody_takes_them_spans_are_left_out_and_counted() -> None:
    spans = Spans("/p", "machine")
    for _ in range(tracing.MOST_WAITING + 3):
        spans.hear(RunEvent(RUN, kinds.STEP_STARTED, 1.0, {"step": "a", "id": "a", "type": "wait"}))
        spans.hear(RunEvent(RUN, kinds.STEP_COMPLETED, 1.0, {"step": "a"}))
    assert spans.left_out == 3
    assert len(taken(spans)) == tracing.MOST_WAITING
    assert (spans.take(), spans.left_out) == (None, 0)
