"""One start of a server-driven run: from its lock to the last receipt."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine import steering
from sidecar.engine.closing import close, greet
from sidecar.engine.ending import Ending, RunEnds
from sidecar.engine.finishing import end_between, finish
from sidecar.engine.opened import CHANGED, LEFTOVERS, OpenRun, load, prepare_resume, signal_directories
from sidecar.engine.record.run_log import RunLog
from sidecar.engine.vigil import watched
from sidecar.errors import DefinitionChanged, SidecarError, StoreError
from sidecar.model import run as kinds
from sidecar.model.run import RunEvent
from sidecar.signals import files
from sidecar.signals.liveness import RunLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from sidecar.catalog.imports import Definition
    from sidecar.engine.context import Person
    from sidecar.engine.owner import Owner
    from sidecar.model.agent import EndReason
    from sidecar.store.journal import Run

    Door = Callable[["Execution"], AbstractAsyncContextManager[None]]

_REPLY_S = 2.0  # how long the answer to an agent's call may take to get out, before the agent is ended


class Execution:
    """One run while this process executes it."""

    def __init__(
        self,
        owner: Owner,
        run_id: str,
        hear: Callable[[RunEvent], None],
        *,
        person: Person | None = None,
        feedback: str | None = None,
        definition: Definition | None = None,
        mcp: Any = None,
        door: Door | None = None,
        replies_out: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`definition`: in place of the one that the run was started with. `door`: open while the lock is held, for
        the run's agents to call through. `replies_out` waits until who called has its answer."""
        self.owner = owner
        self.run_id = run_id
        self.opened: OpenRun | None = None  # while it runs
        self._tell = hear
        self._log: RunLog | None = None
        self._person = person
        self._feedback = feedback
        self._definition = definition
        self._mcp = mcp
        self._door = door
        self._replies_out = replies_out
        self._asked: tuple[Ending, EndReason, bool] | None = None  # before it was open

    # --- from outside, while it runs

    def interrupt(self, *, at_once: bool = False) -> None:
        """End its agents by the ladder, and with them this start; `at_once`: without grace."""
        self._end_now(Ending("interrupted", "interrupted"), "shutdown", at_once=at_once)

    def redirect(self, text: str, name: str | None = None) -> list[str]:
        """Have what its agents do now done again, with a text added: the steps that are."""
        return self.opened.interpreter.work.redirect(text, name) if self.opened else []

    async def submit_stage(self, stage: str, output: Any, kind: str, delivered: anyio.Event) -> None:
        """An agent submits a stage: when it has its answer, and had time to end by itself, the run pauses."""
        assert self.opened is not None
        interpreter, processes = self.opened.interpreter, self.opened.processes
        step = min(processes.steps(), default=interpreter.image.main.step_key())
        told = {"stage": stage, "output": output, "kind": kind, "step": step}
        interpreter.work.submitted = told
        interpreter.ledger.note(kinds.GATE, **told)
        interpreter.ledger.commit(durable=True)
        with anyio.move_on_after(_REPLY_S):
            await delivered.wait()
        with anyio.move_on_after(self.owner.settings.kill_after_s):
            await processes.idle()
        self._end_now(Ending("paused", f"{stage} waits for approval", waits=told), "stage_gate")

    # --- from the lock to the receipt

    async def execute(self) -> Ending:
        """Run until it ends, stops, pauses or fails. StoreError: the journal cannot be kept; it can be resumed."""
        root = self.owner.root
        run = self.owner.journal.run(self.run_id)
        if run.status == "completed":
            return Ending("completed", "it was completed before: nothing is done again")
        for directory in signal_directories(root, run):
            files.recover(directory)  # before the start: what is put back looks as if it had just come
        with RunLock(root, self.run_id, run.workspace) as lock:
            run = self.owner.journal.run(self.run_id)  # nobody changes it any more
            environment = run.details.get("environment") or self.owner.environment
            self._log = RunLog(root, self.run_id, self.owner.settings.secret_values(environment))
            try:
                return await self._opened(run, lock.leftovers)
            finally:
                self._log.close()

    async def _opened(self, run: Run, leftovers: frozenset[str]) -> Ending:
        try:
            opened = self.opened = self._open(run, leftovers)
        except (StoreError, DefinitionChanged):
            raise
        except SidecarError as error:
            return self._could_not_begin(error)
        opened.replies_out = self._replies_out
        failure: Exception | None = None
        try:
            async with self._door(self) if self._door else nullcontext():
                try:
                    return await self._run(opened)
                except Exception as error:  # raised again outside: the door's task group would wrap it
                    failure = error
        finally:
            self.opened = None
            opened.close()
        assert failure is not None
        raise failure

    def _could_not_begin(self, error: SidecarError) -> Ending:
        """The defaults of the state, or a limit, cannot be computed: a start that ends before its first step."""
        journal = self.owner.journal
        last = journal.last_seq(self.run_id)
        with self.owner.database.transaction():
            run = journal.run(self.run_id)
            if run.status != "running":
                journal.begin(self.run_id, {"workflow": run.workflow, "was": run.status})
            journal.end(self.run_id, "failed", reason=str(error))
        for event in journal.events(self.run_id, after=last):
            self._hear(event.told)
        return Ending("failed", str(error))

    def _open(self, run: Run, leftovers: frozenset[str]) -> OpenRun:
        owner, was = self.owner, run.status
        if run.start:
            owner.database.verify()
        image = load(owner, run, self._definition)
        with owner.database.transaction():
            if run.status == "running":
                owner.journal.end(run.run_id, "interrupted", reason="its owner died")
                was = "interrupted"
            prepare_resume(owner, run, image, self._feedback)
            for handout in owner.handouts.all_held(run.run_id):  # whoever had it in hand is gone
                owner.handouts.take_back(run.run_id, handout.task_id)
            data: dict[str, Any] = {"workflow": run.workflow, "was": was, "feedback": self._feedback}
            details = {**run.details, LEFTOVERS: sorted(leftovers)}
            if self._definition is not None:  # the next resume goes on with it, too
                data["with_changes"] = True
                details[CHANGED] = self._definition.record()
            run = owner.journal.change(run.run_id, details=details, driver="server")
            owner.journal.begin(run.run_id, data)
        opened = OpenRun(owner, run, image, self._hear, person=self._person, mcp=self._mcp)
        opened.ledger.checkpoint(image.to_json)
        kind = kinds.RUN_RESUMED if run.start else kinds.RUN_STARTED
        self._hear(RunEvent(run.run_id, kind, owner.database.clock(), data, opened.ledger.seq))
        return opened

    async def _run(self, opened: OpenRun) -> Ending:
        try:
            await self._turn(opened)
        except anyio.get_cancelled_exc_class():
            if opened.lost is None:  # whoever executes the run gave it up: the journal says so, not a guess at a resume
                close(opened, opened.ending or Ending("interrupted", "interrupted"))
            raise
        if opened.lost is not None:
            raise opened.lost
        assert opened.ending is not None
        return close(opened, opened.ending)

    async def _turn(self, opened: OpenRun) -> None:
        greet(opened)
        if self._asked is not None:
            opened.end_now(self._asked[0], self._asked[1], at_once=self._asked[2])
        async with watched(opened), anyio.create_task_group() as beside:
            beside.start_soon(steering.watch, self.owner.root, self.run_id, self._redirected)
            try:
                with opened.scope:
                    opened.note(await self._to_the_end(opened))
            except RunEnds as ends:
                opened.note(ends.ending)
            except StoreError as error:
                opened.lost = opened.lost or error
            finally:
                beside.cancel_scope.cancel()

    async def _to_the_end(self, opened: OpenRun) -> Ending:
        async with opened.workshop():
            while True:
                try:
                    ending = await finish(opened, await opened.interpreter.walk(opened.image.main))
                except RunEnds as ends:
                    ending = await end_between(opened, ends.ending)
                if ending is not None:
                    return ending

    def _hear(self, event: RunEvent) -> None:
        if self._log is not None:
            self._log.hear(event)
        self._tell(event)

    def _redirected(self, name: str, text: str) -> None:
        opened = self.opened
        if opened is None or name in opened.image.redirects:  # journalled by an owner that died before it removed it
            return
        try:
            if not self.redirect(text, name):
                opened.warn("no agent to redirect")
        except StoreError as error:
            opened.lose(error)

    def _end_now(self, ending: Ending, reason: EndReason, *, at_once: bool = False) -> None:
        if self.opened is None:
            self._asked = self._asked or (ending, reason, at_once)
        else:
            self.opened.end_now(ending, reason, at_once=at_once)
