"""The log of an agent that prints for days: bounded, and who follows it misses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.agents import output
from sidecar.agents.output import FORMER, OutputSink
from sidecar.service import status

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
