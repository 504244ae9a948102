"""One start of a server-driven run: from its lock to the last receipt."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.agents import marker
from sidecar.engine import approval, execution, redirects
from sidecar.engine.boundary import Ending, RunEnds, signal_directories
from sidecar.engine.ending import (
    clear_stale_signals,
    decide,
    decide_early,
    end_run,
    end_unheld,
    end_unloadable,
    ending_of_unheld,
    previous_status,
    revert_beginning,
)
from sidecar.engine.execution import REQUEST, Execution, prepare_resume, watching
from sidecar.engine.replay import CHANGED, load
from sidecar.engine.run_log import RunLog
from sidecar.engine.step import unforeseen
from sidecar.errors import DefinitionChanged, SidecarError, StoreError, UnwrappedErrors, unwrapped
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.signals import files, liveness
from sidecar.store.db import free, when_free
from sidecar.store.journal import OPEN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.owner import Owner
    from sidecar.engine.run import Run
    from sidecar.engine.steps.context import AskablePerson
    from sidecar.model.agent import EndReason
    from sidecar.store.journal import StoredRun

    Door = Callable[["ServerDriven"], AbstractAsyncContextManager[None]]


_REPLY_S = 2.0  # how long the answer to an agent's call may take to get out, before the agent is ended
_TERM_S = 2.0  # of the grace at a gate: enough for an agent that obeys SIGTERM (claude, with a tool running: 1.3 s)


class ServerDriven:
    """One run while this process executes it."""

    def __init__(
        self,
        owner: Owner,
        run_id: str,
        hear: Callable[[RunEvent], None],
        *,
        person: AskablePerson | None = None,
        feedback: str | None = None,
        approve: bool = False,
        definition: Definition | None = None,
        request: str | None = None,
        attached: bool = False,
        mcp: Any = None,
        door: Door | None = None,
        replies_out: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`feedback`, `approve`: what a person says at a resume. `definition`: in place of the one that the run was
        started with. `request`: the id under which the run was handed over; one that was taken back since is not
        executed. `attached`: from now on the run belongs to a terminal. `door`: open while the lock is held, for the
        run's agents to call through. `replies_out` waits until who called has its answer."""
        self.owner = owner
        self.run_id = run_id
        self.opened: Execution | None = None  # while it runs
        self._tell = hear
        self._log: RunLog | None = None
        self._person = person
        self._feedback = feedback
        self._approve = approve
        self._definition = definition
        self._request = request
        self._attached = attached
        self._mcp = mcp
        self._door = door
        self._replies_out = replies_out
        self._asked: tuple[Ending, EndReason, float | None] | None = None  # before it was open

    # --- from outside, while it runs

    def interrupt(self, *, at_once: bool = False) -> None:
        """End its agents by the ladder, and with them this start; `at_once`: without grace, and without waiting for a
        journal that another process has locked."""
        if at_once and self.opened is not None:
            self.opened.ledger.give_up()
        self._end_now(Ending("interrupted", "interrupted"), "shutdown", within_s=0.0 if at_once else None)

    def redirect(self, text: str, name: str | None = None) -> list[str]:
        """Have what its agents do now done again, with a text added: the steps that are."""
        return self.opened.interpreter.work.redirect(text, name) if self.opened else []

    async def submit_stage(self, stage: str, output: Any, kind: str, delivered: anyio.Event) -> None:
        """An agent submits a stage, which is journalled and told at once. When it has its answer, it has the grace to
        end its turn; the last part of that is SIGTERM's. Then the run pauses."""
        assert self.opened is not None
        interpreter, processes = self.opened.interpreter, self.opened.processes
        step = min(processes.steps(), default=interpreter.image.main.step_key())
        told = {"stage": stage, "output": output, "kind": kind, "step": step}
        interpreter.work.submitted = told
        interpreter.ledger.note(kinds.GATE, **told)
        interpreter.ledger.commit(durable=True)
        with anyio.move_on_after(_REPLY_S):
            await delivered.wait()
        grace_s = self.owner.settings.kill_after_s
        term_s = min(_TERM_S, grace_s / 2)
        with anyio.move_on_after(grace_s - term_s):
            await processes.idle()
        self._end_now(Ending("paused", f"{stage} waits for approval", waits=told), "stage_gate", within_s=term_s)

    # --- from the lock to the receipt

    async def execute(self) -> Ending:
        """Run until it ends, stops, pauses or fails. StoreError: the journal cannot be kept; it can be resumed.

        Executes open runs only: whoever goes on with one that has ended begins it again first.
        """
        root = self.owner.root
        run = self.owner.journal.run(self.run_id)
        for directory in signal_directories(root, run):
            files.recover(directory)  # before the look: it may be what ends a run that nobody executed
        with liveness.RunLock(root, self.run_id) as lock:
            await free(self.owner.database)  # so that what follows does not wait for it on the loop
            run = self.owner.journal.run(self.run_id)  # nobody changes it any more
            if (ending := self._not_executed(run)) is not None:
                return ending
            approval.check(self.owner.journal, run, feedback=self._feedback, approve=self._approve)
            execution.refuse_second(self.owner.journal, root, run.workflow, run.workspace, self.run_id)
            self._log = RunLog(root, self.run_id)
            try:
                return await self._opened(run, lock)
            finally:
                self._log.close()

    def _not_executed(self, run: StoredRun) -> Ending | None:
        """Why nothing is done: the run has ended, was taken back, or a signal was written while nobody executed it."""
        if run.status == "completed":
            return Ending("completed", "it was completed before: nothing is done again", executed=False)
        if run.status not in OPEN:
            reason = f"it has ended before anybody executed it ({run.reason or run.status})"
            return Ending(run.status, reason, executed=False)  # type: ignore[arg-type]  # it is not pending or running
        if self._request is not None and self._request != (run.details.get(REQUEST) or {}).get("id"):
            raise SidecarError(f"run {self.run_id} was taken back: whoever handed it over waits no longer")
        liveness.keep_open(self.owner.root, self.run_id, workspace=run.workspace, driver="server")
        if run.status == "pending":  # a beginning: it ends before its first step, as every start that meets a signal
            return None
        ending = ending_of_unheld(self.owner, run)
        if ending is not None:
            return replace(end_unheld(self.owner, run, ending, self._hear), executed=False)
        return None

    async def _opened(self, run: StoredRun, lock: liveness.RunLock) -> Ending:
        last = self.owner.journal.last_seq(self.run_id)
        try:
            opened = self.opened = await self._open(run)
        except StoreError:
            raise
        except DefinitionChanged:
            revert_beginning(self.owner.root, self.owner.journal, run)
            raise
        except Exception as error:
            await free(self.owner.database)
            return end_unloadable(self.owner, self.run_id, last, error, self._hear)
        opened.replies_out = self._replies_out
        try:
            with UnwrappedErrors():
                async with self._door(self) if self._door else nullcontext():
                    return await self._run(opened, lock)
        finally:
            self.opened = None
            opened.close()

    async def _open(self, run: StoredRun) -> Execution:
        owner = self.owner
        if run.start:
            owner.database.verify()
        image = load(owner, run, self._definition)
        run, data = await when_free(owner.database, lambda: self._begin(run, image))
        opened = Execution(owner, run, image, self._hear, person=self._person, mcp=self._mcp)
        await opened.ledger.checkpoint(image.to_json)
        kind = kinds.RUN_RESUMED if run.start else kinds.RUN_STARTED
        self._hear(RunEvent(run.run_id, kind, owner.database.clock(), data, opened.ledger.seq))
        return opened

    def _begin(self, run: StoredRun, image: Run) -> tuple[StoredRun, dict[str, Any]]:
        """Journal the start; the run as it is then, and what is told of it."""
        owner, was = self.owner, previous_status(self.owner.journal, run)
        if self._feedback is not None:
            self._feedback = owner.mask_of(run.run_id).masked_text(self._feedback)
        if run.status == "running":
            died = run.driver == "server"
            why = "its owner died" if died else "the agent that drove it was relieved"
            owner.journal.end(run.run_id, "interrupted", reason=why, data={"owner_died": True} if died else None)
            was = "interrupted"
        prepare_resume(owner, run, image, self._feedback, approve=self._approve)
        for handout in owner.handouts.all_held(run.run_id):  # whoever had it in hand is gone
            owner.handouts.take_back(run.run_id, handout.task_id)
        data: dict[str, Any] = {"workflow": run.workflow, "previous_status": was, "feedback": self._feedback}
        data["boot"] = marker.boot_id()  # how often owners died since the machine was started is counted
        if self._approve:
            data["approved"] = True
        details = self._details(run)
        if self._definition is not None:  # the next resume goes on with it, too
            data["with_changes"] = True
            details[CHANGED] = self._definition.record()
        run = owner.journal.change(run.run_id, details=details, driver="server")
        owner.journal.begin(run.run_id, data)
        return run, data

    def _details(self, run: StoredRun) -> dict[str, Any]:
        """Whose the run is from now on: the terminal's here, or that of whoever handed it over."""
        details = {name: value for name, value in run.details.items() if name != REQUEST}
        if self._attached:
            return {**details, "detached": False}
        if self._request is None:
            return details
        environment = details.get("environment") or run.details[REQUEST]["environment"]
        return {**details, "detached": True, "environment": environment}

    async def _run(self, opened: Execution, lock: liveness.RunLock) -> Ending:
        try:
            await self._turn(opened, lock)
        except anyio.get_cancelled_exc_class():
            if opened.lost is None:  # whoever executes the run gave it up: the journal says so, not a guess at a resume
                await end_run(opened, opened.ending or Ending("interrupted", "interrupted"))
            raise
        except Exception as error:  # outside of any step: the run itself fails, and says so
            self._fell(opened, unwrapped(error))
        if opened.lost is None:
            assert opened.ending is not None
            try:
                return await end_run(opened, opened.ending)
            except StoreError as error:
                opened.lost = error
        return self._close_without_journal(opened, opened.lost)

    def _close_without_journal(self, opened: Execution, lost: StoreError) -> Ending:
        """The journal cannot be kept: whoever watches hears of the end all the same, and the next one who reads the
        journal finds a run without an owner, which is interrupted, too."""
        ending = opened.ending
        if ending is None or ending.status != "interrupted":
            ending = Ending("interrupted", str(lost))
        told = {"status": ending.status, "reason": ending.reason}
        told = opened.mask.masked_event(told)
        self._hear(RunEvent(self.run_id, kinds.RUN_ENDED, self.owner.database.clock(), told))
        if ending is not opened.ending:
            raise lost
        return ending

    def _fell(self, opened: Execution, error: Exception) -> None:
        if isinstance(error, StoreError):
            opened.lose(error)
        elif opened.lost is None:
            opened.interpreter.outcomes.keep_traceback(error)
            opened.note(Ending("failed", unforeseen(error)))

    async def _turn(self, opened: Execution, lock: liveness.RunLock) -> None:
        clear_stale_signals(opened)
        if self._asked is not None:
            opened.end_now(self._asked[0], self._asked[1], within_s=self._asked[2])
        async with watching(opened, lock), anyio.create_task_group() as beside:
            beside.start_soon(redirects.watch, self.owner.root, self.run_id, self._redirected)
            try:
                with opened.scope:
                    opened.note(await self._to_the_end(opened))
            except RunEnds as ends:
                opened.note(ends.ending)
            except StoreError as error:
                opened.lost = opened.lost or error
            finally:
                beside.cancel_scope.cancel()

    async def _to_the_end(self, opened: Execution) -> Ending:
        async with opened.workshop():
            while True:
                try:
                    ending = await decide(opened, await opened.interpreter.walk(opened.image.main))
                except RunEnds as ends:
                    ending = await decide_early(opened, ends.ending)
                if ending is not None:
                    return ending

    def _hear(self, event: RunEvent) -> None:
        if self._log is not None:
            self._log.on_event(event)
        self._tell(event)

    async def _redirected(self, name: str, text: str) -> None:
        opened = self.opened
        if opened is None or name in opened.image.redirects:  # journalled by an owner that died before it removed it
            return
        try:
            if not self.redirect(text, name):
                opened.warn("no agent to redirect")
            await opened.ledger.caught_up()  # what was left for us is removed then
        except StoreError as error:
            opened.lose(error)

    def _end_now(self, ending: Ending, reason: EndReason, *, within_s: float | None = None) -> None:
        if self.opened is None:
            self._asked = self._asked or (ending, reason, within_s)
        else:
            self.opened.end_now(ending, reason, within_s=within_s)
