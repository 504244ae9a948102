"""Limits of an agent, and the files whose change is a sign of life."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents.adapters.adapter import MessagePiece, Resumed, TokenUsage, ToolBegan, ToolEnded, Used, Waiting
from sidecar.agents.turn import Files, LimitWatch
from sidecar.model.agent import Limits


class Agent:
    """An agent in a time of its own."""

    def __init__(self, **limits: Any) -> None:
        self.now = 1000.0
        self.watch = LimitWatch(Limits.model_validate(limits), lambda: self.now)

    def after(self, seconds: float) -> str | None:
        """Let time pass; the reason to end the agent, if there is one now."""
        self.now += seconds
        reached = self.watch.reached()
        return reached.reason if reached else None


def test_a_timeout_is_wall_clock_whatever_the_agent_does() -> None:
    agent = Agent(timeout="10s", idle_timeout="5s")
    for _ in range(3):
        agent.now += 3
        agent.watch.output(1)
        assert agent.watch.reached() is None
    agent.watch.waits_for_permission()
    assert agent.after(1) == "timeout"


EVIDENCE: dict[str, Callable[[Agent, int], None]] = {
    "output": lambda agent, _: agent.watch.output(1),
    "tool activity": lambda agent, _: agent.watch.tool_activity(),
    "CPU time": lambda agent, turn: agent.watch.cpu(4.0 * turn),
    "file changes": lambda agent, turn: agent.watch.files(("a.py", turn)),
    "processes that come and go": lambda agent, turn: agent.watch.cpu(5.0 if turn % 2 else 0.0),
}


@pytest.mark.parametrize("kind", list(EVIDENCE))
def test_an_agent_with_any_evidence_of_life_is_never_stalled(kind: str) -> None:
    agent = Agent(idle_timeout="5s")
    for turn in range(1, 100):
        assert agent.after(4) is None
        EVIDENCE[kind](agent, turn)
    assert agent.after(4.9) is None
    assert agent.after(0.2) == "stall"


def test_silence_is_a_stall_and_evidence_that_nothing_happened_is_none() -> None:
    agent = Agent(idle_timeout="5s")
    agent.watch.files("same")
    agent.watch.cpu(1.0)
    for _ in range(4):
        assert agent.after(1) is None
        agent.watch.output(0)
        agent.watch.files("same")
        agent.watch.cpu(1.0)
    assert agent.after(1) == "stall"


def test_the_timers_of_a_hung_tool_are_no_life() -> None:
    agent = Agent(idle_timeout="60s")
    for second in range(1, 61):
        agent.now += 1
        agent.watch.cpu(second * 0.0135)  # gemini, with a model that never answers
    assert agent.after(0) == "stall"


def test_waiting_for_a_permission_is_no_stall_and_afterwards_silence_counts_again() -> None:
    agent = Agent(idle_timeout="5s")
    agent.watch.waits_for_permission()
    assert agent.watch.next_check_s() is None
    assert agent.after(100_000) is None
    agent.watch.goes_on()
    assert agent.after(4) is None
    assert agent.after(1) == "stall"


def test_waiting_for_a_told_moment_is_no_stall_until_it_has_passed() -> None:
    agent = Agent(idle_timeout="5s")
    agent.watch.waits_for_moment(3600)
    assert agent.watch.next_check_s() == 3605
    assert agent.after(3600) is None
    assert agent.after(4) is None
    assert agent.after(1) == "stall"


@pytest.mark.parametrize(
    ("limits", "tokens", "cost_usd", "reason"),
    [
        ({"max_cost_usd": 1.5}, 0, 1.49, None),
        ({"max_cost_usd": 1.5}, 0, 1.5, "budget"),
        ({"max_cost_usd": 1.5}, 10**9, None, None),
        ({"max_tokens": 100}, 99, 5.0, None),
        ({"max_tokens": 100}, 100, None, "budget"),
    ],
)
def test_a_budget_is_reached_by_what_was_told(
    limits: dict[str, object], tokens: int, cost_usd: float | None, reason: str | None
) -> None:
    agent = Agent(**limits)
    agent.watch.spent(tokens, cost_usd)
    assert agent.after(0) == reason


def test_a_cost_that_is_no_longer_told_is_not_forgotten() -> None:
    agent = Agent(max_cost_usd=1)
    agent.watch.spent(1, 2.0)
    agent.watch.spent(2, None)
    assert agent.after(0) == "budget"


def test_the_message_says_which_limit_and_how_much() -> None:
    agent = Agent(max_tokens=100, idle_timeout="90s", timeout="1h")
    agent.watch.spent(150, None)
    reached = agent.watch.reached()
    assert reached is not None
    assert reached.message == "used 150 of at most 100 tokens"
    agent.watch.spent(0, None)
    agent.now += 90
    reached = agent.watch.reached()
    assert reached is not None
    assert reached.message == "no output, tool activity, CPU use or file change for 90 s"


EPOCH_S = 1_794_800_000.0


def test_an_adapters_events_are_evidence() -> None:
    agent = Agent(idle_timeout="5s", max_tokens=100)
    for event in (ToolBegan("1", "Bash"), ToolEnded("1", "Bash", succeeded=True)):
        assert agent.after(4) is None
        agent.watch.handle(event, EPOCH_S)
    assert agent.after(4) is None
    agent.watch.handle(MessagePiece("hello"), EPOCH_S)  # its bytes were output, and have counted as such
    assert agent.after(1) == "stall"
    agent.watch.handle(Used(TokenUsage(60, 40), None), EPOCH_S)
    assert agent.after(0) == "budget"


def test_an_adapters_waits_are_no_stall_where_they_end_by_a_person_or_at_a_moment() -> None:
    agent = Agent(idle_timeout="5s")
    agent.watch.handle(Waiting("permission", None), EPOCH_S)
    assert agent.after(1000) is None
    agent.watch.handle(Waiting("rate_limit", EPOCH_S + 3600), EPOCH_S)
    assert agent.after(3604) is None
    assert agent.after(1) == "stall"
    agent.watch.handle(Resumed(), EPOCH_S)
    assert agent.after(4) is None
    agent.watch.handle(Waiting("permission", None), EPOCH_S)
    agent.watch.handle(Waiting("rate_limit", None), EPOCH_S)
    assert agent.after(4) is None
    assert agent.after(1) == "stall"


STEPS = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=30),
        st.sampled_from(["output", "tool", "files", "permission", "moment", "goes on", "nothing"]),
    ),
    max_size=30,
)


@given(STEPS)
def test_before_the_next_look_nothing_is_reached_by_time_alone(steps: list[tuple[float, str]]) -> None:
    agent = Agent(timeout="100s", idle_timeout="10s")
    for number, (seconds, what) in enumerate(steps):
        agent.now += seconds
        if agent.watch.reached():
            return
        match what:
            case "output":
                agent.watch.output(1)
            case "tool":
                agent.watch.tool_activity()
            case "files":
                agent.watch.files(number)
            case "permission":
                agent.watch.waits_for_permission()
            case "moment":
                agent.watch.waits_for_moment(20)
            case "goes on":
                agent.watch.goes_on()
        left = agent.watch.next_check_s()
        assert left is not None
        here = agent.now
        agent.now = here + left - 0.001
        assert left <= 0.001 or agent.watch.reached() is None
        agent.now = here + left + 0.001
        assert agent.watch.reached() is not None
        agent.now = here


# --- the files that an agent works on


def test_a_file_that_is_changed_is_seen_also_where_the_clock_was_set_back_since_others_were(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "a", (2_000_000_000, 2_000_000_000))
    os.utime(tmp_path / "b", (1_000_000_000, 1_000_000_000))
    files = Files((str(tmp_path),))
    before = files.token()
    assert files.token() == before
    os.utime(tmp_path / "b", (1_000_000_001, 1_000_000_001))
    assert files.token() != before


def test_life_during_a_wait_does_not_shorten_it_and_going_on_ends_it() -> None:
    agent = Agent(idle_timeout="5s")
    agent.watch.waits_for_moment(3600)
    agent.watch.output(10)
    assert agent.after(100) is None
    agent.watch.goes_on()
    assert agent.after(5) == "stall"


def test_a_moment_that_has_passed_is_no_wait() -> None:
    agent = Agent(idle_timeout="5s")
    agent.now += 4
    agent.watch.waits_for_moment(-50)
    assert agent.after(5) == "stall"
