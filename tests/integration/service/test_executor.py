"""Runs in the tasks of one process: many at once, none of which harms another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from sidecar.errors import SidecarError, StoreError
from sidecar.service.owners import LocalExecutor, LocalRuns, StartOptions
from tests.kit import eventually

if TYPE_CHECKING:
    from tests.integration.service.conftest import Place

pytestmark = pytest.mark.anyio
WAITING = {"id": "a", "type": "shell_command", "command": "touch begun-$SIDECAR_RUN_ID; exec sleep 300"}


async def test_many_runs_go_on_at_once(place: Place) -> None:
    # Each waits for all others: only together can they be done.
    together = "touch m-$SIDECAR_RUN_ID; until test $(ls m-* | wc -l) -eq 8; do sleep 0.02; done"
    run_ids = [place.run("meet", {"id": "a", "type": "shell_command", "command": together}) for _ in range(8)]
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(LocalRuns(place.owner), tasks)
        for run_id in run_ids:
            await executor.begin(run_id)
            assert executor.live(run_id) is not None
        await eventually(lambda: all(place.status(run_id) == "completed" for run_id in run_ids))
    assert not any(executor.live(run_id) for run_id in run_ids)


async def test_a_run_that_cannot_begin_is_its_callers_affair_and_nobody_elses(place: Place) -> None:
    run_id = place.run("wait", WAITING)
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(LocalRuns(place.owner), tasks)
        with pytest.raises(StoreError, match="no such run"):
            await executor.begin("0" * 26)
        await executor.begin(run_id)
        with pytest.raises(SidecarError, match="already being executed"):
            await executor.begin(run_id)
        with pytest.raises(SidecarError, match="is not waiting for an answer"):
            await executor.begin(place.run("wait", WAITING), StartOptions(answer="what?"))
        assert place.status(run_id) == "running"
        await executor.interrupt()
    assert place.status(run_id) == "interrupted"


async def test_when_it_ends_all_runs_are_interrupted_and_no_more_are_taken(place: Place) -> None:
    run_ids = [place.run("wait", WAITING) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(LocalRuns(place.owner), tasks)
        for run_id in run_ids:
            await executor.begin(run_id)
        await eventually(lambda: len(list(place.root.glob("begun-*"))) == 3)
        await executor.interrupt()
        assert [place.status(run_id) for run_id in run_ids] == ["interrupted"] * 3
        with pytest.raises(SidecarError, match="takes no more runs"):
            await executor.begin(run_ids[0])


async def test_a_second_word_ends_them_without_grace(place: Place) -> None:
    deaf = "trap '' TERM; touch begun; while :; do sleep 1; done"
    run_id = place.run("deaf", {"id": "a", "type": "shell_command", "command": deaf})
    place.owner.settings = place.owner.settings.model_copy(update={"kill_after_s": 3000})
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(LocalRuns(place.owner), tasks)
        await executor.begin(run_id)
        await eventually((place.root / "begun").exists)
        tasks.start_soon(executor.interrupt)
        await anyio.lowlevel.checkpoint()
        executor.hurry()
    assert place.status(run_id) == "interrupted"


async def test_whoever_listens_to_all_runs_hears_each_end_once(place: Place) -> None:
    ends: list[str] = []
    runs = LocalRuns(place.owner)
    runs.listeners.add(lambda event: ends.append(event.run_id) if event.kind == "run_ended" else None)
    run_ids = [place.run("quick", {"id": "a", "type": "shell_command", "command": "true"}) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(runs, tasks)
        for run_id in run_ids:
            await executor.begin(run_id)
        await eventually(lambda: sorted(ends) == sorted(run_ids))


async def test_a_stage_ends_its_agent_after_the_answers_are_out_and_not_before(place: Place) -> None:
    place.owner.settings = place.owner.settings.model_copy(update={"kill_after_s": 0})
    runs = LocalRuns(place.owner)
    run_id = place.run("wait", WAITING)
    ended_before: list[bool] = []

    async def out() -> None:
        """What a server does while an answer is on its way."""
        await anyio.wait_all_tasks_blocked()
        ended_before.append(any(event.kind == "agent_ended" for event in place.owner.journal.events(run_id)))

    runs.replies.add(out)
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(runs, tasks)
        await executor.begin(run_id)
        await eventually(lambda: any(place.root.glob("begun-*")))
        assert await executor.submit_stage(run_id, "half", "so far", "stage") is not None
        await eventually(lambda: place.status(run_id) == "paused")
        assert await executor.submit_stage(run_id, "half", "so far", "stage") is None  # it is not here any more
    assert ended_before == [False]
    (ended,) = [event.data for event in place.owner.journal.events(run_id) if event.kind == "agent_ended"]
    assert ended["reason"] == "stage_gate"
