"""What each adapter reads out of a tool's output; the recorded files are what the real tools printed."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.adapters.adapter import (
    Event,
    Failed,
    MessagePiece,
    Parser,
    Resumed,
    Summary,
    TokenUsage,
    ToolBegan,
    ToolEnded,
    Used,
    Waiting,
)
from sidecar.model.agent import AdapterName

RECORDED = Path(__file__).parent / "recorded"
NOW = 1_794_800_000.0  # seconds since the epoch, in the week of the recordings


def parser(name: AdapterName, now: float = NOW) -> Parser:
    return ADAPTERS[name].parser(lambda: now)


def replay(recording: str) -> tuple[list[Event], Summary]:
    """All events of a recording, and the summary at its end."""
    adapter: AdapterName = "claude"
    for name in ADAPTERS:
        if recording.startswith(name):
            adapter = name
    reader = parser(adapter)
    events: list[Event] = []
    stderr = RECORDED / f"{recording}.stderr.txt"
    for line in (RECORDED / f"{recording}.jsonl").read_bytes().splitlines(keepends=True):
        events += reader.feed(line)
    for text in stderr.read_text().splitlines() if stderr.exists() else ():
        events += reader.feed(text, "stderr")
    return events, reader.summary()


def tools(events: list[Event]) -> list[tuple[str, str]]:
    """The tool activity among events."""
    found = []
    for event in events:
        if isinstance(event, ToolBegan):
            found.append(("began", event.name))
        elif isinstance(event, ToolEnded):
            found.append(("ended" if event.succeeded else "failed", event.name))
    return found


@pytest.mark.parametrize(
    ("recording", "tokens", "cost_usd"),
    [
        ("claude_text", TokenUsage(5, 5, 0), 0.00015),
        ("codex_text", TokenUsage(1, 1, 0), None),
        ("gemini_text", TokenUsage(10, 6, 4), None),
    ],
)
def test_an_answer_is_read_with_its_session_and_what_it_used(
    recording: str, tokens: TokenUsage, cost_usd: float | None
) -> None:
    events, summary = replay(recording)
    assert summary.text == "canned hello"
    assert MessagePiece("canned hello") in events
    assert summary.session_id is not None
    assert len(summary.session_id) == 36
    assert summary.tokens == tokens
    assert summary.cost_usd == (None if cost_usd is None else pytest.approx(cost_usd))
    assert Used(summary.tokens, summary.cost_usd) in events
    assert (summary.finished, summary.error, summary.waiting, summary.denied) == (True, None, None, ())


@pytest.mark.parametrize(
    ("recording", "name"),
    [
        ("claude_tool", "Bash"),
        ("claude_mcp", "mcp__sidecar__abort"),
        ("codex_tool", "command_execution"),
        ("codex_mcp", "sidecar.abort"),
        ("gemini_tool", "run_shell_command"),
    ],
)
def test_a_tool_call_is_seen_to_begin_and_to_end(recording: str, name: str) -> None:
    events, summary = replay(recording)
    assert tools(events) == [("began", name), ("ended", name)]
    assert (summary.text, summary.finished, summary.open_tools) == ("canned hello", True, ())


@pytest.mark.parametrize(
    ("recording", "name"),
    [
        ("claude_aborted", "Bash"),
        ("codex_aborted", "command_execution"),
        ("gemini_aborted", "run_shell_command"),
    ],
)
def test_an_agent_ended_during_a_tool_call_has_not_finished(recording: str, name: str) -> None:
    events, summary = replay(recording)
    assert tools(events)[0] == ("began", name)
    assert (summary.finished, summary.open_tools, summary.text) == (False, (name,), "")


@pytest.mark.parametrize("recording", ["claude_hang", "codex_hang"])
def test_an_agent_whose_model_never_answers_has_a_session_and_nothing_else(recording: str) -> None:
    _, summary = replay(recording)
    assert summary.session_id
    assert summary == Summary(session_id=summary.session_id)


def test_what_claude_prints_after_sigterm_looks_like_success_and_the_failed_tool_shows() -> None:
    events, summary = replay("claude_result_after_sigterm")
    assert tools(events) == [("began", "Bash"), ("failed", "Bash")]
    assert summary.finished


@pytest.mark.parametrize(("recording", "name"), [("claude_denied", "Write"), ("codex_denied", "sidecar.abort")])
def test_a_tool_that_nobody_permitted_is_told(recording: str, name: str) -> None:
    events, summary = replay(recording)
    assert summary.denied == (name,)
    assert ("failed", name) in tools(events)
    assert summary.finished


def test_a_structured_result_is_the_tools_own_or_an_answer_that_is_json() -> None:
    assert replay("claude_structured")[1].structured == {"count": 3}
    _, claude = lines({"type": "result", "result": "Three.", "structured_output": {"count": 3}})
    assert claude.summary().structured == {"count": 3}
    reader = parser("codex")
    reader.feed('{"type":"item.completed","item":{"id":"1","type":"agent_message","text":" [1, 2] "}}')
    assert reader.summary().structured == [1, 2]
    reader.feed('{"type":"item.completed","item":{"id":"2","type":"agent_message","text":"see [1, 2]"}}')
    assert reader.summary().structured is None


def test_claude_that_reached_its_budget_says_so() -> None:
    _, summary = replay("claude_budget")
    assert summary.budget_reached
    assert summary.error == "Reached maximum budget ($0.0001)"
    assert summary.cost_usd == pytest.approx(0.00015)


@pytest.mark.parametrize(
    ("recording", "error"),
    [
        ("claude_server_error", "API Error: 500 canned refusal"),
        ("codex_server_error", "experiencing high demand"),
        ("gemini_bad_request", "canned refusal"),
    ],
)
def test_an_error_is_in_the_tools_words_and_is_not_the_answer(recording: str, error: str) -> None:
    events, summary = replay(recording)
    assert summary.error is not None
    assert error in summary.error
    assert [event for event in events if isinstance(event, Failed)] == [Failed(summary.error)]
    assert (summary.text, summary.finished, summary.waiting, summary.budget_reached) == ("", True, None, False)


@pytest.mark.parametrize(
    ("recording", "until"),
    [("claude_server_error", NOW + 0.5), ("codex_server_error", None), ("gemini_server_error", None)],
)
def test_a_tool_that_asks_again_is_waiting_but_not_for_a_rate_limit(recording: str, until: float | None) -> None:
    waits = [event for event in replay(recording)[0] if isinstance(event, Waiting)]
    assert waits
    assert {event.what for event in waits} == {"retry"}
    assert waits[0].until == (None if until is None else pytest.approx(until, abs=0.2))


def test_claude_waits_out_a_rate_limit_until_the_moment_it_told() -> None:
    events, summary = replay("claude_rate_limit")
    assert [event for event in events if isinstance(event, Waiting)] == [Waiting("rate_limit", NOW + 2, "rate_limit")]
    assert summary.waiting is not None
    assert summary.waiting.what == "rate_limit"
    assert "429" in str(summary.error)
    assert summary.text == ""


def test_codex_tells_a_rate_limit_without_an_end() -> None:
    _, summary = replay("codex_rate_limit")
    assert summary.waiting is not None
    assert (summary.waiting.what, summary.waiting.until) == ("rate_limit", None)
    assert summary.error == "exceeded retry limit, last status: 429 Too Many Requests"


def test_codex_tells_the_end_of_a_usage_limit_in_local_time() -> None:
    today = replay("codex_usage_limit")[1].waiting
    later = replay("codex_usage_limit_days")[1].waiting
    assert today is not None
    assert today.until is not None
    assert later is not None
    assert later.until is not None
    assert time.strftime("%d %H:%M", time.localtime(today.until)) == time.strftime("%d", time.localtime(NOW)) + " 04:43"
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(later.until)) == "2026-11-19 02:56"


def test_gemini_tells_on_stderr_how_long_it_waits() -> None:
    events, summary = replay("gemini_rate_limit")
    waits = [event for event in events if isinstance(event, Waiting)]
    assert [event.until for event in waits] == [pytest.approx(NOW + s) for s in (5.208, 11.121, 22.777)]
    assert summary.waiting == waits[-1]
    assert not summary.finished


@pytest.mark.parametrize(
    ("name", "trouble", "end"),
    [
        ("codex", {"type": "error", "message": "the stream broke"}, {"type": "turn.completed"}),
        ("gemini", {"type": "error", "message": "the stream broke"}, {"type": "result", "status": "success"}),
    ],
)
def test_an_error_on_the_way_to_a_good_end_is_told_and_is_not_the_outcome(
    name: AdapterName, trouble: dict[str, str], end: dict[str, str]
) -> None:
    reader = parser(name)
    assert reader.feed(json.dumps(trouble)) == [Failed("the stream broke")]
    assert reader.summary().error == "the stream broke"
    reader.feed(json.dumps(end))
    assert (reader.summary().error, reader.summary().finished) == (None, True)


# --- what cannot be recorded without an account; the shapes are those of claude 2.1


def lines(*messages: dict[str, object]) -> tuple[list[Event], Parser]:
    reader = parser("claude")
    return [event for message in messages for event in reader.feed(json.dumps(message))], reader


def test_a_rejecting_rate_limit_event_has_the_time_of_its_end() -> None:
    info = {"status": "rejected", "resetsAt": NOW + 7200, "rateLimitType": "five_hour"}
    events, reader = lines({"type": "rate_limit_event", "rate_limit_info": info})
    assert events == [Waiting("rate_limit", NOW + 7200, "five_hour")]
    reader.feed('{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"limit"}')
    assert reader.summary().waiting == Waiting("rate_limit", NOW + 7200, "rate_limit")


def test_a_delay_that_has_passed_is_not_told_as_the_end_of_the_limit() -> None:
    now = [NOW]
    reader = ADAPTERS["claude"].parser(lambda: now[0])
    reader.feed('{"type":"system","subtype":"api_retry","retry_delay_ms":2000,"error_status":429,"error":"rate_limit"}')
    now[0] += 3
    reader.feed('{"type":"result","is_error":true,"api_error_status":429,"result":"given up"}')
    assert reader.summary().waiting == Waiting("rate_limit", None, "rate_limit")


@pytest.mark.parametrize("info", [{"status": "allowed"}, {"status": "rejected", "overageStatus": "allowed"}])
def test_a_rate_limit_event_that_lets_the_agent_go_on_is_no_wait(info: dict[str, object]) -> None:
    events, reader = lines({"type": "rate_limit_event", "rate_limit_info": {**info, "resetsAt": NOW + 7200}})
    assert (events, reader.summary().waiting) == ([], None)


@pytest.mark.parametrize(
    "asking",
    [
        {"type": "system", "subtype": "session_state_changed", "state": "requires_action"},
        {"type": "control_request", "request": {"subtype": "can_use_tool", "tool_name": "Write"}},
    ],
)
def test_claude_waits_for_a_permission_until_it_goes_on(asking: dict[str, object]) -> None:
    events, reader = lines(asking)
    assert isinstance(events[0], Waiting)
    waiting = reader.summary().waiting
    assert waiting is not None
    assert (waiting.what, waiting.until) == ("permission", None)
    going_on = '{"type":"system","subtype":"session_state_changed","state":"running"}'
    assert reader.feed(going_on) == [Resumed()]
    assert reader.summary().waiting is None


def test_a_message_in_several_lines_is_counted_once_and_a_sub_agents_words_are_not_the_answer() -> None:
    def said(text: str, message_id: str, parent: str | None) -> dict[str, object]:
        usage = {
            "input_tokens": 10,
            "cache_read_input_tokens": 90,
            "cache_creation_input_tokens": 5,
            "output_tokens": 7,
        }
        message = {"id": message_id, "content": [{"type": "text", "text": text}], "usage": usage}
        return {"type": "assistant", "message": message, "parent_tool_use_id": parent}

    events, reader = lines(said("one", "m1", None), said("two", "m1", None), said("inner", "m2", "toolu_9"))
    assert [event.tokens.total for event in events if isinstance(event, Used)] == [112, 224]
    assert reader.summary().tokens == TokenUsage(input=210, output=14, cached=180)
    assert reader.summary().text == "two"


# --- a command


def test_the_answer_of_a_command_is_its_standard_output() -> None:
    reader = parser("command")
    reader.feed(b"one\n")
    assert reader.feed("two") == [MessagePiece("two")]
    assert reader.feed(b"a warning\n", "stderr") == []
    reader.feed(b"\xff\r\n")
    assert reader.summary() == Summary(text="one\ntwo\n\ufffd")


def test_of_endless_output_the_end_is_kept() -> None:
    reader = parser("command")
    for number in range(100):
        reader.feed(f"{number}:" + "x" * 100_000)
    reader.feed("y" * 10_000_000 + "end")
    reader.feed("last")
    text = reader.summary().text
    assert 4_000_000 <= len(text) <= 5_000_000
    assert text.endswith("yend\nlast")


# --- nothing that a tool prints can hurt

GARBAGE = [
    b"",
    b"\xff\xfe\x00",
    b"{",
    b'{"type":"result","result":"cut of',
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    b'{"type":"a type of the future","x":1}',
    b'{"type":["result"]}',
    b'{"type":"assistant","message":"text"}',
    b'{"type":"assistant","message":{"content":[1,{"type":"text","text":5},{"type":"tool_use"}],"usage":[]}}',
    b'{"type":"user","message":{"content":{"type":"tool_result"}}}',
    b'{"type":"result","usage":{"input_tokens":NaN,"output_tokens":-5},"total_cost_usd":Infinity,"modelUsage":{"m":3}}',
    b'{"type":"result","is_error":true,"errors":[1,null],"permission_denials":[3]}',
    b'{"type":"system","subtype":"api_retry","retry_delay_ms":"soon"}',
    b'{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":1e999}}',
    b'{"type":"item.completed","item":{"type":"mcp_tool_call","error":"x"}}',
    b'{"type":"turn.failed","error":"x"}',
    b'{"type":"error","message":"hit your usage limit, try again at Feb 31st, 2026 2:56 AM"}',
    b'{"type":"turn.completed","usage":{"input_tokens":' + b"9" * 5000 + b"}}",
    b'{"type":"result","total_cost_usd":1' + b"0" * 400 + b"}",
    b'{"type":"message","role":"assistant","content":"\\ud800","delta":true}',
    b'{"type":"assistant","message":{"content":[{"type":"text","text":"\\uDC00 \\ud83d\\ude00"}]}}',
    b'{"type":"result","structured_output":{"\\ud800":["\\udfff"]}}',
    b'{"a":' * 100_000,
    b"[" * 100_000,
]


@pytest.mark.parametrize("name", list(ADAPTERS))
@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_never_raises_and_what_follows_is_still_read(name: AdapterName, line: bytes) -> None:
    reader = parser(name)
    for stream in ("stdout", "stderr"):
        reader.feed(line, stream)
    reader.feed(line.decode("utf-8", "replace"))
    before = reader.summary()
    before.text.encode()  # holds no half of a character
    json.dumps(before.structured, ensure_ascii=False).encode()
    assert before.tokens.total >= 0
    good = {
        "claude": '{"type":"assistant","message":{"content":[{"type":"text","text":"good"}]}}',
        "codex": '{"type":"item.completed","item":{"id":"9","type":"agent_message","text":"good"}}',
        "gemini": '{"type":"message","role":"assistant","content":"good"}',
        "command": "good",
    }
    assert MessagePiece("good") in reader.feed(good[name])
    assert reader.summary().text.endswith("good")


# The tools' own words, in any order and nesting.
WORDS = st.sampled_from(
    sorted(
        {word for path in RECORDED.glob("*.jsonl") for word in re.findall(r'"([A-Za-z_.]{2,30})"', path.read_text())}
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(WORDS, VALUES, max_size=6) | st.binary(max_size=40), max_size=6))
def test_whatever_the_lines_no_parser_raises(messages: list[dict[str, object] | bytes]) -> None:
    for name in ADAPTERS:
        reader = parser(name)
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            reader.feed(line)
            reader.feed(line, "stderr")
        summary = reader.summary()
        assert isinstance(summary.text, str)
        assert summary.tokens.total >= 0
