"""What a dead owner left is found by pid, start time, boot and marks; an innocent process is left alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sidecar.agents import lineage
from sidecar.agents.containment import choose
from sidecar.agents.ladder import reap
from sidecar.model.agent import AgentRecord

pytestmark = pytest.mark.anyio
HERE = choose("sweep")


def dead_owner() -> lineage.MarkerOwner:
    """Somebody who is gone: a pid that is in use, but was another process's then."""
    return lineage.MarkerOwner(os.getpid(), 1.0, lineage.pid_namespace())


def living_owner() -> lineage.MarkerOwner:
    row = HERE.table().row(os.getpid())
    assert row is not None
    return lineage.MarkerOwner(os.getpid(), row.started, lineage.pid_namespace())


@contextmanager
def process(**environment: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={**os.environ, **environment})
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def record_of(started: subprocess.Popen[bytes], owner: lineage.MarkerOwner) -> AgentRecord:
    row = HERE.table().row(started.pid)
    assert row is not None
    marker = lineage.new_marker("AGENT", owner)
    return AgentRecord("AGENT", "RUN", row.pid, row.started, lineage.boot_id(), marker, lineage.new_tag())


async def test_a_recorded_process_is_ended_by_its_pid_and_start_time() -> None:
    with process() as left:
        ended, survivors = await reap([record_of(left, dead_owner())], "/project", HERE)
        assert (left.wait(120), survivors) == (-15, 0)
    assert [(row.run_id, row.pid, row.rung) for row in ended] == [("RUN", left.pid, "term")]


async def test_an_innocent_process_with_the_recorded_pid_is_untouched() -> None:
    with process() as innocent:
        record = record_of(innocent, dead_owner())
        other_time = replace(record, started=record.started - 100)
        other_boot = replace(record, boot_id="another boot")
        assert await reap([other_time, other_boot], "/project", HERE) == ([], 0)
        assert innocent.poll() is None


async def test_an_agent_whose_owner_lives_is_untouched() -> None:
    marker = lineage.new_marker("AGENT", living_owner())
    with process(SIDECAR_MARKER=marker, SIDECAR_PROJECT="/project") as theirs:
        assert await reap([record_of(theirs, living_owner())], "/project", HERE) == ([], 0)
        assert theirs.poll() is None


async def test_an_unrecorded_process_is_found_by_its_marker_in_its_own_project_only() -> None:
    marker = lineage.new_marker("AGENT", dead_owner())
    with (
        process(SIDECAR_MARKER=marker, SIDECAR_PROJECT="/project") as left,
        process(SIDECAR_MARKER=marker.replace("AGENT", "OTHER"), SIDECAR_PROJECT="/elsewhere") as elsewhere,
    ):
        ended, _ = await reap([], "/project", HERE)
        assert left.wait(120) == -15
        assert [row.pid for row in ended] == [left.pid]
        assert elsewhere.poll() is None


async def test_a_marker_of_another_pid_namespace_or_boot_tells_nothing() -> None:
    elsewhere = dead_owner()._replace(pid_namespace="elsewhere:1")
    with process(SIDECAR_MARKER=lineage.new_marker("AGENT", elsewhere), SIDECAR_PROJECT="/project") as theirs:
        assert await reap([record_of(theirs, elsewhere)], "/project", HERE) == ([], 0)
        assert theirs.poll() is None
