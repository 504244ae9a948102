from __future__ import annotations

import anyio
import pytest

from sidecar.mcp_server import calls
from sidecar.mcp_server.calls import Call, OpenCalls, run_of
from sidecar.mcp_server.progress import ExpectedSteps, RunProgress
from sidecar.model import ulid

DEADLINE_S = 20


def call() -> Call:
    return Call(RunProgress(ExpectedSteps("w", {}, {})), detached=False, on_event=lambda _: None)


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
    one.progress.run_id = run_id
    assert run_of(OpenCalls().keep(one)) == run_id
    assert run_of("x.y") is None
    assert run_of("") is None
