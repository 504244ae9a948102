"""Lines out of bytes, and listeners that cannot grow without bound."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents.output import TAIL_BYTES, LineSplitter, OutputLines, OutputSink, Subscription


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
