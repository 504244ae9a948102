"""Who belongs to an agent, and how such a set is killed."""

from __future__ import annotations

import signal

import pytest

from sidecar.agents.proc_table import Identity, Row, Table
from sidecar.agents.sweep import Killing, Lineage

ROOT, SENTINEL, OWNER = 100, 50, 40
TAG = 77


def row(pid: int, parent: int = 1, session: int = 7, *, tokens: tuple[str, ...] = (), tag: int = 0) -> Row:
    return Row(pid, parent, session, float(pid), False, tokens, tag)


def lineage(**more: object) -> Lineage:
    known: dict[str, object] = {"root": Identity(ROOT, float(ROOT)), "strangers": frozenset({1, OWNER, SENTINEL})}
    return Lineage("mine", TAG, outside=frozenset({OWNER, SENTINEL}), **{**known, **more})  # type: ignore[arg-type]


def members(of: Lineage, *rows: Row) -> set[int]:
    everyone = (row(1, 0, 1), row(OWNER, 1, OWNER), row(SENTINEL, OWNER, SENTINEL), *rows)
    return {found.pid for found in of.members(Table(everyone))}


AGENT = row(ROOT, SENTINEL, ROOT)


@pytest.mark.parametrize(
    "escaped",
    [
        pytest.param([row(101, ROOT, ROOT)], id="child"),
        pytest.param([row(101, ROOT, 101), row(102, 101, 102)], id="grandchild in its own session"),
        pytest.param([row(102, 1, ROOT)], id="orphan in the agent's session"),
        pytest.param([row(102, 1, 101, tokens=("other", "mine"))], id="orphan with the marker"),
        pytest.param([row(102, 1, 101, tag=TAG)], id="orphan with the tag only"),
        pytest.param([row(101, ROOT, 101), row(102, 1, 101)], id="orphan in a session that a member made"),
    ],
)
def test_every_trace_leads_back_to_the_agent(escaped: list[Row]) -> None:
    assert members(lineage(), AGENT, *escaped) == {ROOT, *(found.pid for found in escaped)}


def test_strangers_are_never_members() -> None:
    others = [row(200, 1, 200), row(201, SENTINEL, 201, tokens=("theirs",), tag=78), row(202, OWNER, OWNER)]
    assert members(lineage(), AGENT, *others) == {ROOT}


def test_a_reused_pid_is_a_stranger_and_so_is_everybody_in_its_session() -> None:
    reused = AGENT._replace(started=999.0, parent=1)
    assert members(lineage(), reused, row(101, ROOT, ROOT)) == set()


def test_before_it_has_a_session_of_its_own_an_agent_does_not_drag_the_sentinels_in() -> None:
    assert members(lineage(), AGENT._replace(session=SENTINEL), row(60, SENTINEL, SENTINEL)) == {ROOT}


def test_who_was_seen_to_belong_belongs_also_after_it_lost_its_traces() -> None:
    of = lineage()
    assert members(of, AGENT, row(101, ROOT, ROOT)) == {ROOT, 101}
    assert members(of, row(101, 1, 101)) == {101}
    assert members(of, row(101, 1, 101)._replace(started=5.0)) == set()


def test_the_dead_are_not_living_but_their_children_are_found() -> None:
    assert members(lineage(), AGENT._replace(zombie=True), row(101, ROOT, 101)) == {101}


def test_everybody_below_a_sub_reaper_can_be_meant() -> None:
    of = Lineage("", 0, ancestor=SENTINEL, strangers=frozenset({SENTINEL}))
    assert members(of, row(300, SENTINEL, 300), row(301, 300, 301), row(400, 1, 400)) == {300, 301}


def test_nobody_is_killed_before_everybody_is_held_still() -> None:
    sent: list[tuple[int, signal.Signals]] = []

    def send(identity: Identity, number: signal.Signals) -> bool:
        sent.append((identity.pid, number))
        return True

    killing = Killing(send)
    first, second = Identity(1, 0), Identity(2, 0)
    assert not killing.round([first])
    assert not killing.round([first, second])
    assert killing.round([first, second])
    assert sent == [(1, signal.SIGSTOP), (2, signal.SIGSTOP), (1, signal.SIGKILL), (2, signal.SIGKILL)]


def test_who_forks_faster_than_we_look_is_killed_all_the_same() -> None:
    killing = Killing(lambda identity, number: True)
    assert any(killing.round([Identity(number, 0)]) for number in range(100))
