"""Executes a run in this process, without an outside agent: lock, start, interpreter, end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any

import anyio

from sidecar import layout
from sidecar.agents import lineage
from sidecar.catalog.workflows import Definition
from sidecar.engine import approval, redirects
from sidecar.engine.boundary import Ending, RunEnds
from sidecar.engine.ending import (
    clear_stale_signals,
    decide,
    decide_early,
    end_abandoned,
    end_execution,
    end_run,
    end_unheld,
    end_unloadable,
    ending_of_unheld,
    journal_start,
    revert_beginning,
)
from sidecar.engine.execution import REQUEST, Execution, refuse_second, watching
from sidecar.engine.owner import Owner
from sidecar.engine.replay import CHANGED, load, prepare_resume
from sidecar.engine.run import Run
from sidecar.engine.run_log import RunLog
from sidecar.engine.step import unexpected
from sidecar.engine.steps.context import AskablePerson
from sidecar.errors import DefinitionChanged, SidecarError, StoreError, UnwrappedErrors, unwrapped
from sidecar.model import events as kinds
from sidecar.model.agent import EndReason
from sidecar.model.events import RunEvent
from sidecar.signals import files, run_lock
from sidecar.store.db import free, when_free
from sidecar.store.journal import OPEN, StoredRun

RunEndpoint = Callable[["ServerDriven"], AbstractAsyncContextManager[None]]

_REPLY_S = 2.0  # how long the reply to an agent's call may take, before the agent is ended
_TERM_S = 2.0  # of the grace at a gate: enough for an agent that obeys SIGTERM (claude, with a tool running: 1.3 s)


class ServerDriven:
    """One run while this process executes it."""

    def __init__(
        self,
        owner: Owner,
        run_id: str,
        on_event: Callable[[RunEvent], None],
        *,
        person: AskablePerson | None = None,
        feedback: str | None = None,
        approve: bool = False,
        definition: Definition | None = None,
        request: str | None = None,
        attached: bool = False,
        mcp: Any = None,
        endpoint: RunEndpoint | None = None,
        replies_sent: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """`feedback`, `approve`: of a person, at a resume. `definition`: in place of the one that the run was started
        with. `request`: the id under which the run was given to this process; a run whose request was taken back is not
        executed. `attached`: from now on the run belongs to a terminal. `endpoint`: open while the run is executed, for
        its agents to call. `mcp`, `replies_sent`: as `Execution` has them."""
        self.owner = owner
        self.run_id = run_id
        self.execution: Execution | None = None  # between start and end
        self._on_event = on_event
        self._log: RunLog | None = None
        self._feedback = feedback
        self._approve = approve
        self._definition = definition
        self._request = request
        self._attached = attached
        self._endpoint = endpoint
        self._execution_options: dict[str, Any] = {"person": person, "mcp": mcp, "replies_sent": replies_sent}
        self._early_end: tuple[Ending, EndReason, float | None] | None = None  # requested before the start

    # --- from the lock to the end

    async def execute(self) -> Ending:
        """Execute the run until it ends, stops, pauses or fails. StoreError: the journal cannot be written; the run can
        be resumed. Only open runs are executed: one that has ended has to begin again first."""
        owner, root = self.owner, self.owner.root
        workspace = owner.journal.run(self.run_id).workspace
        for directory in layout.signal_directories(root, self.run_id, workspace):
            files.recover(directory)  # before signals are read: it may be what ends the run
        with run_lock.RunLock(root, self.run_id) as lock:
            await free(owner.database)  # so that what follows does not block the event loop
            stored = owner.journal.run(self.run_id)  # no other process changes it from now on
            if (ending := self._not_executed(stored)) is not None:
                return ending
            approval.check(owner.journal, stored, feedback=self._feedback, approve=self._approve)
            refuse_second(owner.journal, root, stored.workflow, stored.workspace, self.run_id)
            self._log = RunLog(root, self.run_id)
            try:
                return await self._execute(stored, lock)
            finally:
                self._log.close()

    async def _execute(self, stored: StoredRun, lock: run_lock.RunLock) -> Ending:
        last_seq = self.owner.journal.last_seq(self.run_id)
        try:
            execution = self.execution = await self._start(stored)
        except StoreError:
            raise
        except DefinitionChanged:
            revert_beginning(self.owner.root, self.owner.journal, stored)
            raise
        except Exception as error:
            await free(self.owner.database)
            return end_unloadable(self.owner, self.run_id, last_seq, error, self._emit_one)
        try:
            with UnwrappedErrors():
                async with self._endpoint(self) if self._endpoint else nullcontext():
                    await self._interpret(execution, lock)
                    return await end_execution(execution)
        finally:
            self.execution = None
            execution.close()

    async def _interpret(self, execution: Execution, lock: run_lock.RunLock) -> None:
        """Until it is known how the run ends: `execution.ending`, or `execution.lost` without a journal."""
        try:
            clear_stale_signals(execution)
            if self._early_end is not None:
                ending, reason, within_s = self._early_end
                execution.end_now(ending, reason, within_s=within_s)
            async with watching(execution, lock), anyio.create_task_group() as tasks:
                tasks.start_soon(redirects.watch, self.owner.root, self.run_id, self._on_redirect)
                try:
                    with execution.scope:
                        execution.set_ending(await self._walk(execution))
                except RunEnds as ends:
                    execution.set_ending(ends.ending)
                except StoreError as error:
                    execution.lost = execution.lost or error
                finally:
                    tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            if execution.lost is None:  # this process gives the run up: its end is journalled, not guessed at a resume
                await end_run(execution, execution.ending or Ending("interrupted", "interrupted"))
            raise
        except Exception as error:  # outside of any step: the run itself fails
            cause = unwrapped(error)
            if isinstance(cause, StoreError):
                execution.lose_journal(cause)
            elif execution.lost is None:
                execution.interpreter.steps.log_traceback(cause)
                execution.set_ending(Ending("failed", unexpected(cause)))

    async def _walk(self, execution: Execution) -> Ending:
        async with execution.services():
            while True:
                try:
                    ending = await decide(execution, await execution.interpreter.walk(execution.run.main))
                except RunEnds as ends:
                    ending = await decide_early(execution, ends.ending)
                if ending is not None:
                    return ending

    # --- the start

    def _not_executed(self, stored: StoredRun) -> Ending | None:
        """Why nothing is executed: the run has ended, was taken back, or a signal came while no process executed it."""
        if stored.status == "completed":
            return Ending("completed", "already complete; nothing to do", executed=False)
        if stored.status not in OPEN:
            reason = f"it ended before it was executed ({stored.reason or stored.status})"
            return Ending(stored.status, reason, executed=False)  # type: ignore[arg-type]  # it is not pending or running
        if self._request is not None and self._request != (stored.details.get(REQUEST) or {}).get("id"):
            raise SidecarError(f"run {self.run_id} was withdrawn: its sender waits no longer")
        run_lock.keep_open(self.owner.root, self.run_id, workspace=stored.workspace, driver="server")
        if stored.status == "pending":  # a beginning: a signal ends it before its first step
            return None
        ending = ending_of_unheld(self.owner, stored)
        return (
            None if ending is None else replace(end_unheld(self.owner, stored, ending, self._emit_one), executed=False)
        )

    async def _start(self, stored: StoredRun) -> Execution:
        owner = self.owner
        if stored.start:
            owner.database.verify()
        run = load(owner, stored, self._definition)
        stored, data = await when_free(owner.database, lambda: self._journal_start(stored, run))
        execution = Execution(owner, stored, run, self._emit, **self._execution_options)
        await execution.ledger.checkpoint()
        kind = kinds.RUN_RESUMED if stored.start else kinds.RUN_STARTED
        self._emit_one(RunEvent(stored.run_id, kind, owner.database.clock(), data, execution.ledger.seq))
        return execution

    def _journal_start(self, stored: StoredRun, run: Run) -> tuple[StoredRun, dict[str, Any]]:
        """The run as it is then, and the data of the event."""
        owner = self.owner
        stored = end_abandoned(owner, stored)
        feedback = prepare_resume(owner, stored, run, self._feedback, approve=self._approve)
        # How often owners died since the machine was started is counted.
        data: dict[str, Any] = {"feedback": feedback, "boot": lineage.boot_id()}
        if self._approve:
            data["approved"] = True
        details = self._details(stored)
        if self._definition is not None:  # the next resume uses it, too
            data["with_changes"] = True
            details[CHANGED] = self._definition.record()
        stored = owner.journal.change(stored.run_id, details=details, driver="server")
        return stored, journal_start(owner, stored, **data)

    def _details(self, stored: StoredRun) -> dict[str, Any]:
        """Whose the run is from now on: this terminal's, or detached in the environment that it was given with."""
        details = {name: value for name, value in stored.details.items() if name != REQUEST}
        if self._attached:
            return {**details, "detached": False}
        if self._request is None:
            return details
        environment = details.get("environment") or stored.details[REQUEST]["environment"]
        return {**details, "detached": True, "environment": environment}

    # --- from outside, while it is executed

    def interrupt(self, *, at_once: bool = False) -> None:
        """End its agents by the ladder, and with them this execution; `at_once`: without grace, and without waiting for
        a journal that another process has locked."""
        if at_once and self.execution is not None:
            self.execution.ledger.give_up()
        self._end_now(Ending("interrupted", "interrupted"), "shutdown", within_s=0.0 if at_once else None)

    def redirect(self, text: str, name: str | None = None) -> list[str]:
        """Have what its agents do now done again, with a text added: the steps that are."""
        return self.execution.interpreter.steps.redirect(text, name) if self.execution else []

    async def submit_stage(self, stage: str, output: Any, kind: str, delivered: anyio.Event) -> None:
        """An agent submits a stage, which is journalled at once. When it has its reply, it has the grace to end its
        turn; the last part of that is SIGTERM's. Then the run pauses."""
        assert self.execution is not None
        interpreter, processes = self.execution.interpreter, self.execution.processes
        step = min(processes.steps(), default=interpreter.run.main.step_key())
        submitted = {"stage": stage, "output": output, "kind": kind, "step": step}
        interpreter.steps.submitted = submitted
        interpreter.ledger.record(kinds.GATE, **submitted)
        interpreter.ledger.commit(durable=True)
        with anyio.move_on_after(_REPLY_S):
            await delivered.wait()
        grace_s = self.owner.settings.kill_after_s
        term_s = min(_TERM_S, grace_s / 2)
        with anyio.move_on_after(grace_s - term_s):
            await processes.idle()
        self._end_now(Ending("paused", f"{stage} waits for approval", waits=submitted), "stage_gate", within_s=term_s)

    def _end_now(self, ending: Ending, reason: EndReason, *, within_s: float | None = None) -> None:
        if self.execution is None:
            self._early_end = self._early_end or (ending, reason, within_s)
        else:
            self.execution.end_now(ending, reason, within_s=within_s)

    async def _on_redirect(self, name: str, text: str) -> None:
        execution = self.execution
        if execution is None or name in execution.run.redirects:  # journalled by an owner that died before removing it
            return
        try:
            if not self.redirect(text, name):
                execution.warn("no agent to redirect")
            await execution.ledger.caught_up()  # only then the text is removed
        except StoreError as error:
            execution.lose_journal(error)

    def _emit(self, events: Sequence[RunEvent]) -> None:
        """To `run.log`, to the caller, and to those who listen to all runs of this process."""
        if self._log is not None:
            self._log.add(events)
        for event in events:
            self._on_event(event)
        self.owner.emit(*events)

    def _emit_one(self, event: RunEvent) -> None:
        self._emit([event])
