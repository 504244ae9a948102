"""Lines out of bytes, subscribers that cannot grow without bound, the log with its bound, and masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents import output
from sidecar.agents.output import (
    FORMER,
    MASK,
    TAIL_BYTES,
    LineSplitter,
    Masker,
    OutputLines,
    OutputSink,
    Secrets,
    Subscription,
)
from sidecar.service import status


@given(st.lists(st.binary(max_size=20)))
def test_lines_are_the_same_however_the_bytes_arrive(chunks: list[bytes]) -> None:
    lines = LineSplitter()
    found = [line for chunk in chunks for line in lines.feed(chunk)] + lines.rest()
    whole = b"".join(chunks)
    expected = [line.decode("utf-8", "replace") for line in whole.split(b"\n")]
    assert found == (expected if expected[-1] else expected[:-1])


def test_an_overlong_line_is_cut_and_the_next_one_is_whole() -> None:
    lines = LineSplitter()
    for _ in range(40):
        assert lines.feed(b"x" * 50_000) == []
    cut, after = lines.feed(b"end\nnext\n")
    assert cut == "x" * (1 << 20)
    assert after == "next"


def test_the_tail_is_the_end_and_bounded() -> None:
    sink = OutputSink(None)
    for number in range(5000):
        sink.write(b"%d\n" % number)
    sink.write(b"x" * 3)
    assert sink.tail().endswith("4998\n4999\nxxx")
    assert len(sink.tail()) == TAIL_BYTES


@pytest.mark.anyio
async def test_a_listener_that_is_behind_gets_the_newest_and_the_count_of_the_rest() -> None:
    subscription = Subscription(capacity_bytes=10)
    for number in range(6):
        subscription.put("stdout", [str(number), "x"], 4)
    subscription.close()
    received = [output async for output in subscription]
    assert received == [OutputLines("stdout", ["4", "x"], 8), OutputLines("stdout", ["5", "x"], 0)]


@pytest.mark.anyio
async def test_the_first_listener_also_gets_what_came_before_it_and_a_later_one_only_what_follows() -> None:
    sink = OutputSink(None)
    sink.lines("stdout", ["early"], 5)
    first, second = sink.subscribe(), sink.subscribe()
    sink.lines("stderr", ["late"], 4)
    sink.close()
    assert [output.lines async for output in first] == [["early"], ["late"]]
    assert [output.lines async for output in second] == [["late"]]


@pytest.mark.anyio
async def test_who_stops_listening_gets_nothing_more_and_who_comes_after_the_end_gets_an_end() -> None:
    sink = OutputSink(None)
    left = sink.subscribe()
    sink.unsubscribe(left)
    sink.lines("stdout", ["line"], 4)
    sink.close()
    with anyio.fail_after(5):
        assert [output async for output in left] == []
        assert [output async for output in sink.subscribe()] == []


# --- the log of an agent that prints for days: bounded, and who follows it misses nothing


LINES = [b"line %d\n" % number for number in range(1000)]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(output, "MOST_BYTES", 1000)
    return tmp_path / "agents" / "1.log"


def test_it_stays_below_its_bound_and_has_the_newest(path: Path) -> None:
    sink = OutputSink(str(path))
    for line in LINES:
        sink.write(line)
    sink.close()
    assert sink.problem is None
    assert sorted(one.name for one in path.parent.iterdir()) == ["1.log", "1.log" + FORMER]
    assert sum(one.stat().st_size for one in path.parent.iterdir()) < 2200
    # Both parts, without a hole between them.
    whole = "".join(status._new_text(str(path))()).encode()
    assert b"".join(LINES).endswith(whole)
    assert len(whole) > 1000


@pytest.mark.parametrize("turns", [1, 2])
def test_who_follows_it_misses_nothing_though_it_is_turned_between_two_looks(path: Path, turns: int) -> None:
    sink = OutputSink(str(path))
    sink.write(LINES[0])
    news = status._new_text(str(path))
    followed, size = "".join(news()), 0
    for line in LINES[1:]:
        sink.write(line)
        size += len(line)
        if size > turns * 1000:
            followed, size = followed + "".join(news()), 0
    sink.close()
    followed += "".join(news())
    assert followed.encode() == b"".join(LINES)


def test_a_log_that_cannot_be_turned_ends_and_says_so_and_the_agent_goes_on(path: Path) -> None:
    sink = OutputSink(str(path))
    Path(f"{path}{FORMER}").mkdir()
    for line in LINES:
        sink.write(line)
    assert sink.problem == "the log could not be written: Is a directory"
    assert sink.tail().endswith("line 999\n")
    sink.close()


# --- secrets leave neither a stream nor an event in the clear


few_letters = st.text(alphabet='ab"é', min_size=1, max_size=5)


def through(secrets: Secrets, chunks: list[bytes]) -> bytes:
    masker = Masker(secrets)
    return b"".join(masker.feed(chunk) for chunk in chunks) + masker.rest()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.lists(few_letters, max_size=3), st.text(alphabet='ab"éx', max_size=40), st.lists(st.integers(0, 60)))
def test_cutting_the_stream_anywhere_changes_nothing(words: list[str], text: str, places: list[int]) -> None:
    secrets = Secrets(words)
    data = text.encode()
    assert through(secrets, cut(data, places)) == secrets.masked(data)


@given(few_letters, st.text(alphabet="xyz ", max_size=10), st.lists(st.integers(0, 30)))
def test_a_secret_between_other_text_is_never_shown(word: str, around: str, places: list[int]) -> None:
    data = f"{around}{word}{around}".encode()
    shown = through(Secrets([word]), cut(data, places))
    assert shown == around.encode() + MASK + around.encode()


def test_of_two_secrets_that_begin_alike_the_longer_is_masked_whole() -> None:
    secrets = Secrets(["abc", "abcdef"])
    assert through(secrets, [b"1 abc", b"def 2 abc", b" 3"]) == b"1 " + MASK + b" 2 " + MASK + b" 3"


def test_the_end_of_a_secret_that_could_begin_another_is_masked() -> None:
    assert through(Secrets(["aXa"]), [b"..aXa", b".."]) == b".." + MASK + b".."


def test_what_only_looked_like_a_secret_is_shown_when_it_turns_out_not_to_be() -> None:
    masker = Masker(Secrets(["token-123"]))
    assert masker.feed(b"say tok") == b"say "
    assert masker.feed(b"yo") == b"tokyo"
    assert masker.rest() == b""


def test_a_secret_in_json_is_masked_in_its_json_spelling() -> None:
    chunks = [b'{"a": "p\\"w', b'\\n\\u00e4"}']
    assert through(Secrets(['p"w\nä']), chunks) == b'{"a": "' + MASK + b'"}'


def test_an_event_is_masked_in_its_texts_and_keys_and_keeps_its_names() -> None:
    secrets = Secrets(["sk-0123456789"])
    data = {
        "step": "sk-0123456789",
        "text": "it is sk-0123456789",
        "error": {"message": "no sk-0123456789", "codes": [401, "sk-0123456789"]},
        "names": {"sk-0123456789": None},
        "waits": {"step": "sk-0123456789", "prompt": "sk-0123456789?"},
    }
    assert secrets.masked_event(data) == {
        "step": "sk-0123456789",
        "text": "it is ********",
        "error": {"message": "no ********", "codes": [401, "********"]},
        "names": {"********": None},
        "waits": {"step": "sk-0123456789", "prompt": "********?"},
    }


@pytest.mark.parametrize("secret", ["sk-0123456789", 'with "quotes"', "two\nlines", "grün-0123", "back\\slash"])
@pytest.mark.parametrize("said", [lambda secret: secret, json.dumps, lambda secret: [{secret: 1}]])
def test_a_secret_is_found_in_the_json_of_an_event_in_each_spelling(secret: str, said: Callable[[str], object]) -> None:
    secrets = Secrets([secret])
    data = {"text": said(secret)}
    assert any(spelling in json.dumps(data) for spelling in secrets.in_json)
    masked = json.dumps(secrets.masked_event(data))
    assert not any(spelling in masked for spelling in secrets.in_json)


def test_a_number_that_looks_like_a_secret_is_no_text() -> None:
    assert Secrets(["12345678"]).masked_event({"tokens": 12345678}) == {"tokens": 12345678}


def test_secrets_can_be_learned_later() -> None:
    secrets = Secrets([])
    assert not secrets
    secrets.learn(["hunter2hunter2"])
    assert secrets.masked_text("it is hunter2hunter2") == "it is ********"
    assert secrets.masked(b"hunter2hunter2") == b"********"
    assert secrets.in_json == ("hunter2hunter2",)
