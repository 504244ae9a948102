"""Run events as spans, sent to a real collector."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from sidecar import config
from sidecar.engine.owner import Owner
from sidecar.model import events as kinds
from sidecar.model import ulid
from sidecar.model.events import RunEvent
from sidecar.notify.spans import Spans, trace_id
from tests.kit import eventually
from tests.kit.collector import attributes, collecting

pytestmark = pytest.mark.anyio
RUN = ulid.new()
WRITTEN = "what a person wrote"
Events = list[tuple[str, float, dict[str, Any]]]

WHOLE: Events = [
    (kinds.RUN_STARTED, 1.0, {"workflow": "w", "previous_status": "pending", "inputs": {"a": WRITTEN}}),
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


async def send(
    root: Path, endpoint: str, events: Events = WHOLE, sent: Callable[[], bool] = lambda: True, **settings: Any
) -> list[str]:
    """Send the spans of some events, and end when they are `sent`: what was reported."""
    reports: list[str] = []
    found = config.Settings.model_validate({"otlp_endpoint": endpoint, **settings})
    # Of an owner, only what spans need: no sentinel, no journal.
    owner = SimpleNamespace(root=str(root), settings=found, environment={}, report=reports.append)
    spans = Spans(cast("Owner", owner))
    for kind, at, data in events:
        spans.on_event(RunEvent(RUN, kind, at, data))
    await eventually(sent)
    await spans.finish()
    return reports


async def sent(root: Path, events: Events) -> dict[str, dict[str, Any]]:
    """The spans of some events, as a collector gets them, by name."""
    with collecting() as collector:
        assert await send(root, collector.url, events) == []
    return {span["name"]: span for span in collector.spans}


async def test_each_span_stands_inside_of_what_it_belongs_to(tmp_path: Path) -> None:
    spans = await sent(tmp_path, WHOLE)
    around = {
        "parallel_foreach all": "run w",
        "task all.0": "parallel_foreach all",
        "agent ask": "task all.0",
        "agent claude": "agent ask",
    }
    assert set(spans) == {*around, "run w"}
    assert not spans["run w"].get("parentSpanId")
    for name, parent in around.items():
        assert spans[name]["parentSpanId"] == spans[parent]["spanId"], name
    assert {base64.b64decode(span["traceId"]) for span in spans.values()} == {trace_id(RUN).to_bytes(16, "big")}
    assert len({span["spanId"] for span in spans.values()}) == len(spans)


async def test_a_span_has_its_times_its_state_and_how_it_ended(tmp_path: Path) -> None:
    spans = await sent(tmp_path, WHOLE)
    agent, step, run = spans["agent claude"], spans["agent ask"], spans["run w"]
    assert (agent["startTimeUnixNano"], agent["endTimeUnixNano"]) == ("5000000000", "6000000000")
    codes = [span["status"]["code"] for span in (agent, step, run)]
    assert codes == ["STATUS_CODE_ERROR", "STATUS_CODE_ERROR", "STATUS_CODE_OK"]
    assert attributes(agent) | {"sidecar.reason": "timeout", "sidecar.rung": "term"} == attributes(agent)
    assert attributes(step)["sidecar.attempt"] == "2"
    assert attributes(run) | {"sidecar.run_id": RUN, "sidecar.status": "completed"} == attributes(run)


async def test_a_span_holds_nothing_that_an_agent_or_a_person_wrote(tmp_path: Path) -> None:
    with collecting() as collector:
        await send(tmp_path, collector.url)
    assert len(collector.spans) == 5
    assert WRITTEN not in json.dumps(collector.requests)


def test_a_run_is_one_trace_whoever_executes_it() -> None:
    assert trace_id("00000000000000000000000000") == 0
    assert trace_id("7ZZZZZZZZZZZZZZZZZZZZZZZZZ") == 2**128 - 1
    assert trace_id("0000000000000000000000000J") == 0x12


async def test_what_is_under_way_when_the_run_ends_ends_with_it(tmp_path: Path) -> None:
    spans = await sent(tmp_path, [*WHOLE[:5], (kinds.RUN_ENDED, 6.0, {"status": "aborted"})])
    assert set(spans) == {"run w", "parallel_foreach all", "task all.0", "agent ask", "agent claude"}
    assert attributes(spans["agent claude"])["sidecar.cut_off"] is True
    assert spans["run w"]["status"]["code"] == "STATUS_CODE_ERROR"


async def test_what_began_before_this_process_is_no_span_and_harms_none(tmp_path: Path) -> None:
    with collecting() as collector:
        assert await send(tmp_path, collector.url, WHOLE[6:]) == []
    assert collector.requests == []


async def test_the_usual_variables_of_opentelemetry_are_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night-shift")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a-key")
    with collecting() as collector:
        await send(tmp_path, collector.url)
    assert collector.requests[0][1]["x-key"] == "a-key"
    expected = {"service.name": "night-shift", "deployment.environment": "test", "sidecar.project": str(tmp_path)}
    assert collector.resource | expected == collector.resource
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with collecting() as collector:
        assert await send(tmp_path, collector.url) == []
    assert collector.requests == []


async def test_a_collector_that_refuses_is_reported_once_without_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")  # a request for each span
    with collecting(code=404) as collector:
        (report,) = await send(tmp_path, f"{collector.url}/secret-path", sent=lambda: len(collector.requests) > 1)
    assert report.startswith("spans do not arrive: ")
    assert "404" in report
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    reports = await send(tmp_path, f"http://bot:secret-word@127.0.0.1:{port}/secret-path")
    assert len(reports) == 1
    assert "secret" not in report + reports[0]


async def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    with collecting() as other, collecting(code=307, location=f"{other.url}/v1/traces") as collector:
        await send(tmp_path, collector.url, otlp_headers={"X-Key": "for the collector alone"})
        assert collector.requests
    assert other.requests == []


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        with anyio.move_on_after(60) as patience:
            reports = await send(tmp_path, f"http://127.0.0.1:{deaf.getsockname()[1]}")
        assert not patience.cancel_called
    assert reports == ["spans do not arrive: not within 2 s"]
