"""Agents in the journal: found as long as they may live, ended once."""

from __future__ import annotations

import json

import pytest

from sidecar.errors import StoreError
from sidecar.model.agent import AgentEnded, AgentRecord, EndedProcess
from sidecar.store.db import Database
from sidecar.store.journal import Agents

RECORD = AgentRecord("a1", "R", 4242, 17.25, "boot", "marker", 2**63 + 1, "/cgroup")
LOOSE = AgentRecord("a2", None, 4243, 18.5, "boot", "marker", 7)
PROCESS = EndedProcess("R", 4242, "2026-11-16T00:00:00Z", "claude -p", "term", 12.5)
ENDED = AgentEnded("a1", "R", None, 4242, "abort", -15, "term", 3.5, "tail", (PROCESS,), 0)


@pytest.fixture
def agents(database: Database) -> Agents:
    agents = Agents(database)
    agents.started(RECORD)
    agents.started(LOOSE)
    return agents


def test_an_agent_is_found_until_it_has_ended(agents: Agents, database: Database) -> None:
    assert agents.not_ended() == [RECORD, LOOSE]
    agents.ended("a1", ENDED)
    assert agents.not_ended() == [LOOSE]
    ((text,),) = database.rows("SELECT ended FROM agents WHERE agent_id = 'a1'")
    ended = json.loads(text)
    assert (ended["reason"], ended["processes"][0]["rung"]) == ("abort", "term")


def test_an_agent_ends_once(agents: Agents) -> None:
    agents.ended("a2")
    with pytest.raises(StoreError, match="an agent ends only once"):
        agents.ended("a2")
    with pytest.raises(StoreError) as refused:
        agents.ended("nobody")
    assert refused.value.kind == "missing"


def test_a_pid_that_was_changed_behind_our_back_is_not_acted_on(agents: Agents, database: Database) -> None:
    with database.transaction():
        database.execute("UPDATE agents SET record = replace(record, '4242', '4244')")
    with pytest.raises(StoreError, match="is damaged"):
        agents.not_ended()
