from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

from sidecar.mcp_server import calls
from sidecar.mcp_server.calls import Call, OpenCalls, run_of
from sidecar.mcp_server.port import Ask, Tell
from sidecar.mcp_server.progress import Plan, Story
from sidecar.model import ulid
from sidecar.model.events import RUN_STARTED, RunEvent

DEADLINE_S = 20


class Aborts:
    """The one use case that a call needs by itself."""

    def __init__(self) -> None:
        self.aborted: list[str | None] = []

    async def abort(self, reason: str, run_id: str | None = None) -> dict[str, Any]:
        self.aborted.append(run_id)
        return {}


def call() -> Call:
    return Call(Story(Plan("w", {}, {})), detached=False, heard=lambda _: None)


@pytest.mark.anyio
async def test_a_call_taken_back_early_is_aborted_as_soon_as_its_run_is_known() -> None:
    one, service, begun = call(), Aborts(), anyio.Event()

    async def start(tell: Tell, _: Ask) -> dict[str, Any]:
        await begun.wait()
        tell(RunEvent("r", RUN_STARTED, time.time()))
        await anyio.sleep_forever()
        return {}

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.perform, start)
            async with anyio.create_task_group() as aborting:
                aborting.start_soon(one.abort, service.abort, "changed my mind")
                await anyio.wait_all_tasks_blocked()
                assert service.aborted == []
                begun.set()
            tasks.cancel_scope.cancel()
    assert service.aborted == ["r"]


@pytest.mark.anyio
async def test_a_call_that_is_over_before_it_had_a_run_is_not_aborted() -> None:
    one, service = call(), Aborts()

    async def start(_: Tell, __: Ask) -> dict[str, Any]:
        raise ValueError("never began")

    with anyio.fail_after(DEADLINE_S):
        await one.perform(start)
        await one.abort(service.abort, "late")
    assert isinstance(one.error, ValueError)
    assert service.aborted == []


@pytest.mark.anyio
async def test_a_question_waits_for_its_answer_and_nobody_there_is_none() -> None:
    one = call()
    answers: list[str | None] = []

    async def start(_: Tell, ask: Ask) -> dict[str, Any]:
        answers.extend([await ask({"prompt": prompt}, None) for prompt in ("first?", "second?", "third?")])
        return {"done": True}

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.perform, start)
            first = await one.turn()
            assert first is not None
            assert first.question["prompt"] == "first?"
            first.give("yes")
            first.give("too late")
            second = await one.turn()
            assert second is not None
            assert second.question["prompt"] == "second?"
            one.left()
    assert answers == ["yes", None, None]
    assert one.result == {"done": True}


@pytest.mark.anyio
async def test_a_person_who_never_answers_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "ANSWER_WITHIN_S", 0.01)
    with anyio.fail_after(DEADLINE_S):
        assert await call().ask({"prompt": "?"}, None) is None


@pytest.mark.anyio
async def test_open_questions_are_bounded_and_the_oldest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MOST_OPEN", 2)
    kept = OpenCalls()
    many = [call() for _ in range(3)]
    tokens = [kept.keep(one) for one in many]
    assert len(set(tokens)) == 3
    assert [kept.take(token) for token in tokens] == [None, many[1], many[2]]
    assert [kept.take(token) for token in tokens] == [None, None, None], "a token is good once"


def test_a_token_says_whose_it_is_and_nothing_else_does() -> None:
    one = call()
    run_id = ulid.new()
    one.story.run_id = run_id
    assert run_of(OpenCalls().keep(one)) == run_id
    assert run_of("x.y") is None
    assert run_of("") is None
