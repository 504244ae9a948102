"""A process that executes runs for weeks: what it keeps in memory does not grow with how many there were."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

from sidecar.service.driving import Driving
from sidecar.service.owners import LocalExecutor, LocalRuns

if TYPE_CHECKING:
    from tests.integration.service.conftest import Place

pytestmark = pytest.mark.anyio
Once = Callable[[], Awaitable[Any]]
MEASURED = 110  # asyncio forgets timers that were cancelled only when there are 100 of them


def _held() -> tuple[Counter[str], int, int]:
    """What is alive in this process: objects by type, descriptors, threads."""
    gc.collect()
    objects = Counter(type(one).__qualname__ for one in gc.get_objects())
    del objects["ReferenceType"]  # sqlite3 keeps one for each of the last 200 cursors
    return objects, psutil.Process().num_fds(), threading.active_count()


async def _grown(once: Once, warm: int) -> dict[str, int]:
    """What there is more of after many times than after some: one each time at least, or it is no leak."""
    for _ in range(warm):
        await once()
    objects, descriptors, threads = _held()
    for _ in range(MEASURED):
        await once()
    later, *others = _held()
    assert others == [descriptors, threads]
    return {name: more for name, more in (later - objects).items() if more >= MEASURED}


@pytest.mark.parametrize(
    "step",
    [
        {"type": "user_message", "message": "hello"},
        {"type": "shell_command", "command": "true"},
        {"type": "shell_command", "command": "false"},
    ],
    ids=["a message", "a command", "a failure"],
)
async def test_a_run_that_was_executed_here_leaves_nothing(place: Place, step: dict[str, Any]) -> None:
    async with anyio.create_task_group() as tasks:
        executor = LocalExecutor(LocalRuns(place.owner), tasks)

        async def once() -> None:
            await executor.begin(place.run("one", {"id": "a", **step}))
            while executor.at_work:  # noqa: ASYNC110 - it tells nobody
                await anyio.sleep(0.001)

        assert await _grown(once, warm=20) == {}


@pytest.mark.parametrize("done", [True, False], ids=["done", "left behind"])
async def test_a_run_that_an_agent_drives_is_not_kept_for_ever(place: Place, done: bool) -> None:
    place.run("driven", {"id": "a", "type": "agent", "prompt": "do it"})
    async with anyio.create_task_group() as tasks:
        cases = Driving(place.project, place.owner, LocalExecutor(LocalRuns(place.owner), tasks))

        async def once() -> None:
            run_id = (await cases.start("driven", {}))["workflow_id"]
            step = (await cases.next_step(run_id))["step"]
            if done:
                await cases.step_complete(run_id, step["id"])

        assert await _grown(once, warm=120) == {}  # more than are kept open


async def test_a_driven_run_that_was_closed_meanwhile_goes_on_where_it_was(place: Place) -> None:
    place.run("driven", *[{"id": name, "type": "agent", "prompt": name} for name in "ab"])
    async with anyio.create_task_group() as tasks:
        cases = Driving(place.project, place.owner, LocalExecutor(LocalRuns(place.owner), tasks))
        first = (await cases.start("driven", {}))["workflow_id"]
        before = await cases.next_step(first)
        for _ in range(120):
            await cases.next_step((await cases.start("driven", {}))["workflow_id"])
        assert await cases.next_step(first) == before
        await cases.step_complete(first, "a")
        assert (await cases.next_step(first))["step"]["id"] == "b"
