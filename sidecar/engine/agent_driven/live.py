"""A run that this process executes, as the agents of its tasks see it: they ask for steps, and say what came of them.

What they ask for is done on the run that is open here, not on a copy, and ends with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine.agent_driven.hands import Hands
from sidecar.engine.ending import RunEnds
from sidecar.errors import InputError, StoreError
from sidecar.model import run as kinds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sidecar.engine.agent_driven.reported import Report
    from sidecar.engine.opened import OpenRun

    Told = dict[str, Any]


class LiveRun:
    """An open run, while its loop turns."""

    def __init__(self, opened: OpenRun) -> None:
        self.opened = opened
        self._run_id = opened.run.run_id

    async def next_step(self, task_id: str | None = None) -> Told:
        """The step of a task that is to be done now: the same until it is done."""
        over = self._over_already(task_id)
        if over is not None:
            return over
        told = await self._inside(lambda hands: hands.next_step(task_id))
        return {"step": None, **self._ends()} if told is None else told

    async def step_complete(self, report: Report) -> Told:
        """A step of a task was done by its agent, or failed there."""
        told = await self._inside(lambda hands: hands.step_complete(report))
        return {"success": True, **self._ends()} if told is None else told

    def _over_already(self, task_id: str | None) -> Told | None:
        """None where the task is in the hands of an agent. What the sidecar does itself is handed out to nobody."""
        threads = self.opened.image.main.walk()
        known = [thread for thread in threads if thread.task_id == task_id and not thread.told]
        if any(thread.handed for thread in known):
            return None
        if known:
            what = f", and so is its task {task_id}" if task_id else "; a sub-agent of a task gives its task_id"
            raise InputError(f"run {self._run_id} is executed by the sidecar itself{what}")
        for event in self.opened.owner.journal.events(self._run_id):
            if event.kind == kinds.TASK_STARTED and event.data["task"] == task_id:
                return {"step": None, "status": "completed", "reason": f"task {task_id} is over"}
        raise InputError(f"run {self._run_id} has no task {task_id!r}")

    async def _inside(self, do: Callable[[Hands], Awaitable[Told]]) -> Told | None:
        """In the scope of the run: what is begun for a caller ends with the run, and not with the caller. None where
        the run ended before it was done."""
        opened, done = self.opened, anyio.Event()
        if opened.group is None:  # it is over already, or has not quite begun
            return None
        told: list[Told] = []
        failure: list[Exception] = []

        async def perform() -> None:
            try:
                told.append(await do(Hands(opened)))
            except RunEnds as ends:
                opened.end_now(ends.ending)
            except StoreError as lost:
                opened.lose(lost)
                failure.append(lost)
            except Exception as error:  # the caller's, not the run's
                failure.append(error)
            finally:
                done.set()

        opened.group.start_soon(perform)
        await done.wait()
        if failure:
            raise failure[0]
        return told[0] if told else None

    def _ends(self) -> Told:
        ending = self.opened.ending
        return {"status": ending.status if ending else "interrupted", "reason": ending.reason if ending else ""}
