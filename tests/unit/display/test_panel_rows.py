"""The panel as rows of text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.display import panel
from sidecar.display.panel import Row
from sidecar.display.progress import Progress
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.text import width


def told(*events: tuple[str, dict[str, Any]]) -> Progress:
    progress = Progress(workspace="ws")
    for at, (kind, data) in enumerate([(kinds.RUN_STARTED, {"workflow": "iterate"}), *events]):
        progress.on_event(RunEvent("run", kind, float(at), data))
    return progress


def texts(rows: list[Row]) -> list[str]:
    return ["".join(text for text, _ in row) for row in rows]


def drawn(progress: Progress, columns: int = 80, lines: int = 24, *, keys: bool = True) -> str:
    return "\n".join(texts(panel.compose(progress, columns, lines, 100.0, keys=keys)))


STOP = (kinds.SIGNAL, {"signal": "stop", "source": "file", "path": "/p/.stop", "reason": "Tests are red"})


@given(
    columns=st.integers(1, 250),
    lines=st.integers(1, 80),
    name=st.text(),
    said=st.lists(st.text(), max_size=30),
    tasks=st.integers(0, 40),
    flags=st.sets(st.sampled_from(["stop", "abort", "loop", "agent", "note", "question", "keys", "over"])),
)
def test_whatever_is_shown_fills_exactly_the_screen(
    columns: int, lines: int, name: str, said: list[str], tasks: int, flags: set[str]
) -> None:
    events: list[tuple[str, dict[str, Any]]] = [
        (kinds.SIGNAL, {"signal": signal, "reason": name, "source": "file", "path": name})
        for signal in ("stop", "abort")
        if signal in flags
    ]
    events += [(kinds.ITERATION, {"step": name, "iteration": 3, "of": 7})] if "loop" in flags else []
    events += [(kinds.AGENT_STARTED, {"agent_id": "a", "name": name, "pid": 1})] if "agent" in flags else []
    events += [(kinds.MESSAGE, {"text": name})] if "note" in flags else []
    events += [(kinds.AGENT_OUTPUT, {"agent_id": "a", "lines": said})]
    events += [(kinds.TASK_STARTED, {"task": f"{name}.{index}", "step": name}) for index in range(tasks)]
    events += [(kinds.QUESTION, {"prompt": name})] if "question" in flags else []
    events += [(kinds.RUN_ENDED, {"status": "failed", "reason": name})] if "over" in flags else []
    rows = panel.compose(told(*events), columns, lines, 100.0, keys="keys" in flags)
    assert len(rows) == lines
    assert {width(row) for row in texts(rows)} == {columns}


@pytest.mark.parametrize("columns", range(20, 81, 5))
@pytest.mark.parametrize("lines", [10, 12, 24])
def test_status_progress_and_stop_are_on_every_screen(columns: int, lines: int) -> None:
    chatty: list[tuple[str, dict[str, Any]]] = [
        (kinds.AGENT_OUTPUT, {"agent_id": "a", "lines": ["chatter"] * 50}),
        (kinds.MESSAGE, {"text": "a message"}),
    ]
    tasks = [(kinds.TASK_STARTED, {"task": f"each.{index}", "step": "each"}) for index in range(30)]
    loop = (kinds.ITERATION, {"step": "loop", "iteration": 13, "of": 50})
    shown = drawn(told(loop, *chatty, *tasks, STOP), columns, lines)
    for text in ("RUNNING", "12 / 50 (24%)", "Stop requested", "toggle stop"):
        assert text in shown


def test_a_stop_is_shown_with_the_key_that_cancels_it_its_source_and_its_reason() -> None:
    shown = drawn(told(STOP))
    assert "■ Stop requested (Press 's' to cancel)" in shown
    assert "by file /p/.stop: Tests are red" in shown
    assert "Press s to toggle stop" in shown


def test_after_the_end_nothing_is_asked_or_offered_any_more() -> None:
    shown = drawn(told(STOP, (kinds.RUN_ENDED, {"status": "stopped", "reason": "Tests are red"})))
    assert "■ STOPPED  Tests are red" in shown
    assert "requested" not in shown
    assert "Press" not in shown


def test_more_agents_than_rows_are_counted() -> None:
    agents = [(kinds.AGENT_STARTED, {"agent_id": f"a{n}", "name": f"agent{n}", "pid": n}) for n in range(40)]
    shown = drawn(told(*agents))
    assert "agent0" in shown
    assert " more" in shown
    assert "agent39" not in shown


def test_a_loop_without_an_end_has_no_bar_and_no_estimate() -> None:
    shown = drawn(told((kinds.ITERATION, {"step": "loop", "iteration": 4})))
    assert "3 iterations done" in shown
    assert "█" not in shown
    assert "ETA" not in shown


def test_tasks_behind_a_loop_have_the_bar_while_they_run() -> None:
    loop: list[tuple[str, dict[str, Any]]] = [(kinds.ITERATION, {"step": "loop", "iteration": 1, "of": 3})]
    loop.append((kinds.STEP_STARTED, {"step": "each", "id": "each"}))
    items = (kinds.EVALUATED, {"step": "each", "field": "items", "outcome": ["answer", ["a", "b"]]})
    begun = (kinds.TASK_STARTED, {"task": "each.0", "step": "each"})
    assert "0 / 2 (0%)" in drawn(told(*loop, items, begun))
    assert "1 / 3 (33%)" in drawn(told(*loop, items, begun, (kinds.TASK_ENDED, {"task": "each.0"})))


def test_a_loop_that_is_over_before_its_maximum_is_not_half_done() -> None:
    loop = (kinds.ITERATION, {"step": "loop", "iteration": 5, "of": 10})
    rows = texts(panel.summary(told(loop, (kinds.RUN_ENDED, {"status": "completed"})), 60, 100.0))
    assert "5 iterations done" in rows[2]
    rows = texts(panel.summary(told(loop, (kinds.RUN_ENDED, {"status": "stopped"})), 60, 100.0))
    assert "5 / 10 (50%)" in rows[2]


@pytest.mark.parametrize(
    ("kind", "data", "texts"),
    [
        (kinds.SIGNAL, {"signal": "abort", "reason": "enough"}, ["✗ Abort requested: enough"]),
        (kinds.USAGE, {"step": "a", "cost_usd": 0.5, "tokens": 12_345}, ["Cost: $0.5000", "Tokens: 12.3k"]),
        (kinds.QUESTION, {"prompt": "Which branch?"}, ["▶ RUNNING  asks: Which branch?"]),
        (kinds.GATE, {"stage": "plan"}, ["‖ PAUSED  waits for approval of plan"]),
        (kinds.STEP_FAILED, {"step": "a", "id": "lint", "error": {"message": "no"}}, ["step lint failed: no"]),
    ],
)
def test_what_happened_is_shown(kind: str, data: dict[str, Any], texts: list[str]) -> None:
    assert all(text in drawn(told((kind, data))) for text in texts)
    assert "Press" not in drawn(told(STOP), keys=False)
