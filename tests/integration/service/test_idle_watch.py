"""Aborts for runs that nobody holds, noticed by a process that lives on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from sidecar.service.driving import Driving
from sidecar.service.idle_watch import IdleWatch
from sidecar.service.owners import DetachedExecutor
from sidecar.signals.run_lock import RunLock
from tests.kit import eventually

if TYPE_CHECKING:
    from tests.integration.service.conftest import Place

pytestmark = pytest.mark.anyio


async def _idle(place: Place) -> str:
    """A run that an agent drives, between two of its calls."""
    place.run("driven", {"id": "a", "type": "agent", "prompt": "do it"})
    cases = Driving(place.project, place.owner, DetachedExecutor(place.project, place.owner.journal))
    return str((await cases.start("driven", {}))["workflow_id"])


@pytest.mark.parametrize("where", ["the project", "the run"])
async def test_an_abort_ends_an_idle_run_wherever_it_is_written(place: Place, where: str) -> None:
    before = await _idle(place)
    async with anyio.create_task_group() as tasks:
        await tasks.start(IdleWatch(place.owner, look_s=0.1).run)
        after = await _idle(place)  # it has to be noticed that there is another
        own = place.root / ".swissarmyhammer"
        path = (own if where == "the project" else own / "runs" / after) / ".abort"
        path.write_text("enough\n")
        await eventually(lambda: place.status(after) == "aborted")
        await eventually(lambda: not path.exists())
        tasks.cancel_scope.cancel()
    assert place.status(before) == ("aborted" if where == "the project" else "running")


async def test_an_abort_is_applied_once_the_holder_of_the_run_is_gone(place: Place) -> None:
    run_id = await _idle(place)
    path = place.root / ".swissarmyhammer" / "runs" / run_id / ".abort"
    async with anyio.create_task_group() as tasks:
        watch = IdleWatch(place.owner, look_s=0.1)
        await tasks.start(watch.run)
        with RunLock(str(place.root), run_id):
            path.write_text("enough\n")
            other = await _idle(place)
            (path.parent.parent / other / ".abort").write_text("enough\n")
            await eventually(lambda: place.status(other) == "aborted")  # so it has looked
            assert place.status(run_id) == "running"
        await eventually(lambda: place.status(run_id) == "aborted")
        tasks.cancel_scope.cancel()
