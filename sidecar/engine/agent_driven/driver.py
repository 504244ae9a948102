"""A run that an agent outside drives: it asks for the next step, does it, and says what came of it.

Between two calls nobody holds the run: another process may have changed it meanwhile, which the journal tells.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine import approval, exclusive
from sidecar.engine.agent_driven.hands import Hands, refused
from sidecar.engine.closing import clear_stale_signals, close, end_unopened
from sidecar.engine.ending import RunEnds
from sidecar.engine.finishing import end_between
from sidecar.engine.opened import REQUEST, OpenRun, load, locked, prepare_resume, stood_as
from sidecar.engine.record.replaying import pass_boundaries
from sidecar.engine.vigil import watched
from sidecar.errors import InputError, StoreError
from sidecar.signals import liveness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from sidecar.catalog.imports import Definition
    from sidecar.engine.agent_driven.reported import Report
    from sidecar.engine.ending import Ending
    from sidecar.engine.owner import Owner
    from sidecar.engine.record.image import Image
    from sidecar.engine.threads import Thread
    from sidecar.model.run import RunEvent

    Told = dict[str, Any]

_PATIENCE_S = 10.0  # with a locked journal: the caller hears of it, and can try again


class AgentDriven:
    """One run as its caller sees it. Calls on one run follow each other; calls on different runs do not wait."""

    def __init__(self, owner: Owner, run_id: str, hear: Callable[[RunEvent], None]) -> None:
        self._owner = owner
        self._run_id = run_id
        self._hear = hear
        self.definition: Definition | None = None  # held here, it is not read again when the run is loaded
        self._opened: OpenRun | None = None
        self._turn = anyio.Lock()

    async def next_step(self, task_id: str | None = None) -> Told:
        """The step that is to be done now: the same until it is done. At the end `{"step": null, status, reason}`."""
        told = await self._during(lambda hands: hands.next_step(task_id))
        return self._over() if told is None else told

    async def step_complete(self, report: Report) -> Told:
        """A step was done outside, or failed there."""
        if self._owner.journal.run(self._run_id).status != "running":
            return refused(self._owner, self._run_id, report)
        told = await self._during(lambda hands: hands.step_complete(report))
        return {"success": True, **self._over()} if told is None else told

    @asynccontextmanager
    async def held(self) -> AsyncIterator[OpenRun | None]:
        """The run for a moment, for whoever reads or writes its state; None where it is over."""
        async with self._turn, locked(self._owner.root, self._run_id):
            yield self._current()

    async def end(self, opened: OpenRun, ending: Ending) -> None:
        """The caller ends it."""
        await close(opened, ending)

    def let_go(self) -> bool:
        """Close what is open: the journal has all of it. False in the middle of a call, when nothing is closed."""
        if self._turn.locked():
            return False
        self._forget()
        return True

    # --- inside

    async def _during(self, do: Callable[[Hands], Awaitable[Told]]) -> Told | None:
        """Something with the run in hand; None where the run is over, before or by it."""
        async with self._turn, locked(self._owner.root, self._run_id) as lock:
            last = self._owner.journal.last_seq(self._run_id)
            try:
                opened = self._current()
            except (StoreError, InputError):
                raise
            except Exception as error:  # no call could ever have it: this is its end
                end_unopened(self._owner, self._run_id, last, error, self._hear)
                return None
            if opened is None:
                return None
            told = await self._turned(opened, lock, do)
            if opened.lost is not None:
                self._forget()
                raise opened.lost
            if opened.ending is None:
                opened.ledger.commit()
                await opened.ledger.caught_up()  # the caller hears only what the journal has
                return told
            await close(opened, opened.ending)
            self._forget()
            return None

    async def _turned(
        self, opened: OpenRun, lock: liveness.RunLock, do: Callable[[Hands], Awaitable[Told]]
    ) -> Told | None:
        told: Told | None = None
        opened.scope = anyio.CancelScope()
        async with watched(opened, lock):
            try:
                with opened.scope:
                    told = await self._inside(opened, do)
            except RunEnds as ends:
                opened.note(ends.ending)
            except StoreError as error:
                opened.lost = opened.lost or error
        return told

    async def _inside(self, opened: OpenRun, do: Callable[[Hands], Awaitable[Told]]) -> Told | None:
        async with opened.workshop():
            while True:
                try:
                    told = await do(Hands(opened))
                    await opened.batches.quiet()  # what is done here is done before the call returns
                except RunEnds as ends:
                    ending = await end_between(opened, ends.ending)
                    if ending is None:
                        continue
                    opened.note(ending)
                    return None
                return told

    def _current(self) -> OpenRun | None:
        """The run as the journal has it now; what is in memory is used where nobody else wrote meanwhile."""
        owner = self._owner
        run = owner.journal.run(self._run_id)
        if run.status != "running":
            self._forget()
            return None
        if run.driver != "agent":
            self._forget()
            raise InputError(f"run {self._run_id} is not yours to drive: workflow_resume makes you its driver")
        last = owner.journal.last_seq(self._run_id)
        if self._opened is not None and self._opened.ledger.seq == last:
            return self._opened
        self._forget()
        image = load(owner, run)
        image.main.handed = True
        for thread in image.main.walk():
            _to_handed_step(owner, run.run_id, thread)
        # Its agent has been at work since the last that the journal knows of.
        at = owner.journal.events(self._run_id, after=last - 1)[-1].at
        image.counters.duration_s += max(owner.database.clock() - at, 0.0)
        self._opened = OpenRun(owner, run, image, self._hear)
        self._opened.ledger.patience_s = _PATIENCE_S
        clear_stale_signals(self._opened)
        return self._opened

    def _forget(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _over(self) -> Told:
        run = self._owner.journal.run(self._run_id)
        return {"step": None, "status": run.status, "reason": run.reason or ""}


def _to_handed_step(owner: Owner, run_id: str, thread: Thread) -> None:
    """A step that is in an agent's hands was begun: the thread stands at it, not before it."""
    if owner.handouts.held(run_id, thread.task_id or "") is not None:
        pass_boundaries(thread)


def begin(owner: Owner, run_id: str, image: Image) -> None:
    """The start of a run that an agent drives: journalled, with its first checkpoint. The caller has its lock."""
    run = owner.journal.run(run_id)
    with owner.database.transaction():
        details = {name: value for name, value in run.details.items() if name != REQUEST}
        owner.journal.change(run_id, details=details, driver="agent")
        owner.journal.begin(run_id, {"workflow": run.workflow, "previous_status": stood_as(owner.journal, run)})
        owner.transformations.add(run_id, image.spaces.take_traces())
        owner.checkpoints.save(run_id, {**image.to_json(), "seq": owner.journal.last_seq(run_id)})


def resume(owner: Owner, run_id: str, feedback: str | None, *, approve: bool = False) -> None:
    """Go on with an open run that nobody executes, from its last boundary: from now on an agent drives it. What was
    handed out is handed out anew. The caller has its lock."""
    run = owner.journal.run(run_id)
    approval.check(owner.journal, run, feedback=feedback, approve=approve)
    exclusive.refuse_second(owner.journal, owner.root, run.workflow, run.workspace, run_id)
    liveness.keep_open(owner.root, run_id, workspace=run.workspace, driver="agent")
    if feedback is not None:
        feedback = owner.mask_of(run_id).masked_text(feedback)
    image = load(owner, run)
    try:
        with owner.database.transaction():
            for handout in owner.handouts.all_held(run_id):
                owner.handouts.take_back(run_id, handout.task_id)
            prepare_resume(owner, run, image, feedback, approve=approve)
            if run.status == "running":
                owner.journal.end(run_id, "interrupted", reason="its owner died")
            begin(owner, run_id, image)
    finally:
        image.spaces.close()
