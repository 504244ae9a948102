"""A run in the hands of this process: brought into memory from the journal, with everything that its loop needs."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.agents.mask import Secrets
from sidecar.engine import approval
from sidecar.engine.boundary import Ending, Gate, board_of
from sidecar.engine.interpreter import Interpreter
from sidecar.engine.ledger import Ledger
from sidecar.engine.parallel import Batches
from sidecar.engine.processes import Processes
from sidecar.engine.run import Run, back_to_boundary
from sidecar.engine.steps.context import RunServices
from sidecar.errors import InputError, StoreError, UnwrappedErrors
from sidecar.mcp_client.client import McpClients
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.signals import liveness
from sidecar.signals.board import Request
from sidecar.signals.liveness import is_live

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup

    from sidecar.engine.boundary import Ending
    from sidecar.engine.owner import Owner
    from sidecar.engine.steps.context import AskablePerson
    from sidecar.model.agent import EndReason
    from sidecar.model.workflow import RunLimits
    from sidecar.signals.board import Request
    from sidecar.signals.liveness import RunLock
    from sidecar.store.journal import Journal, StoredRun


BUSY_S = 5.0  # how long a call on a run waits for another one to be over
_LOCK_EVERY_S = 0.01
REQUEST = "request"  # in a run's details: somebody handed it over, under this id and with this environment


@asynccontextmanager
async def locked(root: str, run_id: str, within_s: float = BUSY_S) -> AsyncIterator[liveness.RunLock]:
    """The run's lock, waited for without holding up the loop. RunBusy where somebody else keeps it."""
    lock, since = liveness.RunLock(root, run_id), anyio.current_time()
    with liveness.Turn(root, run_id) as turn:
        while True:
            waited_s = anyio.current_time() - since
            try:
                # Whose turn it is may be suspended: that keeps nobody else out.
                if waited_s > within_s / 2 or turn.acquire():
                    lock.acquire(0.0)
                    break
            except liveness.RunBusy as busy:
                if waited_s > within_s:
                    raise liveness.RunBusy(f"{busy}; it is still busy after {within_s:g} s: ask again") from None
            # Who has waited for longer looks more often: among several it is the likeliest to be the next.
            await anyio.sleep(_LOCK_EVERY_S / (1 + 10 * waited_s))
    try:
        yield lock
    finally:
        lock.release()


def prepare_resume(owner: Owner, run: StoredRun, image: Run, feedback: str | None, *, approve: bool = False) -> None:
    """At a resume: back to the last boundary, with what was said since. Nothing where the run has not begun yet."""
    if not run.start:
        return
    wanted = image.definition.workflow.on_resume
    ended = image.main.cursor.state.ending
    past_failure = ended is not None and ended.status == "failed" and not wanted.retry_failed_steps
    back_to_boundary(
        image.main,
        interrupted=run.status in ("running", "interrupted"),
        reset_error_counts=wanted.reset_error_counts,
        past_failure=past_failure,
    )
    image.spaces.hear_feedback(feedback)
    gate = approval.gate_of(owner.journal, run)
    if gate is not None:
        image.answered(gate["step"], approval.said_to(gate, feedback, approved=approve))
    elif feedback is not None:
        image.unheard.append(feedback)


class Execution:
    """One run, its lock held by this process. `hear` is told everything that happens."""

    def __init__(
        self,
        owner: Owner,
        run: StoredRun,
        image: Run,
        hear: Callable[[RunEvent], None],
        *,
        person: AskablePerson | None = None,
        mcp: Any = None,
    ) -> None:
        self.owner = owner
        self.run = run
        self.image = image
        self.hear = hear
        secrets = owner.secrets_of(run)
        self.mask = owner.masks[run.run_id] = Secrets(secrets)
        seq = owner.journal.last_seq(run.run_id)
        self.ledger = Ledger(owner.database, owner.journal, owner.checkpoints, run.run_id, hear, seq=seq)
        self.ledger.keep_trail = lambda: owner.transformations.add(run.run_id, image.spaces.take_traces())
        self.board = board_of(owner, run, self.warn)
        own_directory = self.board.subject.own_directory
        self.processes = Processes(
            owner.supervisor, owner.agents, self.ledger, image.counters, own_directory, lost=self.lose
        )
        owner.hear_ended[run.run_id] = self.processes.over
        environment = run.details.get("environment") or owner.environment
        self.around = RunServices(
            root=owner.root,
            run_id=run.run_id,
            workspace=run.workspace,
            environment=environment,
            settings=owner.settings,
            secrets=secrets,
            mask=self.mask,
            person=person,
            mcp=mcp,
        )
        self.gate = Gate(self.board, image, _limits(image))
        self.interpreter = Interpreter(
            image, self.around, ledger=self.ledger, gate=self.gate, processes=self.processes, tell=self.tell
        )
        self.batches: Batches  # while the loop turns
        self.group: TaskGroup | None = None  # likewise: what is started in it ends with the run
        self.replies_out: Callable[[], Awaitable[object]] | None = None  # waits until who called has its answer
        self.lost: StoreError | None = None
        self.ending: Ending | None = None  # how it is to end, as soon as that is known
        self.scope = anyio.CancelScope()

    def close(self) -> None:
        """Forget it; the journal has it."""
        self.owner.hear_ended.pop(self.run.run_id, None)
        self.owner.masks.pop(self.run.run_id, None)
        self.image.spaces.close()

    @asynccontextmanager
    async def workshop(self) -> AsyncIterator[None]:
        """The machinery around the loop, while it turns: tasks, and servers for `mcp_call`."""
        around, processes = self.around, self.processes
        clients = McpClients(
            start=lambda launch, name: processes.start(launch, name, "", None),
            root=around.root,
            settings=around.settings,
            environment=around.environment,
            secrets=around.secrets,
            log_path=processes.log_path,
            kill_after_s=around.settings.kill_after_s,
            run_id=around.run_id,
        )
        interpreter = self.interpreter
        with UnwrappedErrors():
            async with clients, anyio.create_task_group() as group:
                interpreter.work.around = replace(around, clients=clients)
                self.group = group
                self.batches = interpreter.batches = Batches(interpreter, group, self.end_now)
                try:
                    yield
                finally:
                    self.group = None
                    group.cancel_scope.cancel()

    def note(self, ending: Ending) -> None:
        """How it ends; what was known first counts."""
        self.ending = self.ending or ending

    def end_now(self, ending: Ending, reason: EndReason | None = None, *, within_s: float | None = None) -> None:
        """End its processes, and with them this start; `within_s`: another grace than the usual one."""
        self.note(ending)
        self.processes.request_end(reason or ending.end_reason, within_s=within_s)
        self.scope.cancel()

    def tell(self, kind: str, data: dict[str, Any]) -> None:
        """An event; what agents say and do is passed on, and not journalled."""
        if kind in (kinds.AGENT_OUTPUT, kinds.ACTIVITY):
            self._pass_on(kind, data)  # masked already, as it came out of the agent
        else:
            self.ledger.note(kind, **data)

    def warn(self, text: str) -> None:
        """Something that a person should know."""
        self.say(kinds.WARNING, {"text": text})

    def say(self, kind: str, data: dict[str, Any]) -> None:
        """Tell whoever watches, and not the journal."""
        self._pass_on(kind, self.mask.masked_event(data))

    def _pass_on(self, kind: str, data: dict[str, Any]) -> None:
        self.hear(RunEvent(self.run.run_id, kind, self.owner.database.clock(), data))

    def lose(self, error: StoreError) -> None:
        """The journal cannot be kept: nothing more is done."""
        self.lost = self.lost or error
        self.processes.request_end("internal_error")
        self.scope.cancel()


def _limits(image: Run) -> RunLimits:
    """The run's limits, their templates filled in."""
    limits = image.definition.workflow.limits
    view = image.spaces[()].view({})
    found = {
        "max_iterations": _number("max_iterations", view.value(limits.max_iterations)),
        "max_transitions": _number("max_transitions", view.value(limits.max_transitions)),
    }
    try:
        return limits.model_copy(update={**found, "max_duration_s": view.seconds(limits.max_duration_s)})
    except ValueError as error:
        raise InputError(f"limits: max_duration: {error}") from None


def _number(name: str, found: Any) -> float | None:
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise InputError(f"limits: {name} has to be a number, not {found!r}")
    return found


# While a run is in the hands of this process: an abort ends it at once, the limit of its time, and the loss of its
# place.


_PLACE_EVERY_S = 1.0


async def displaced(is_in_place: Callable[[], bool]) -> None:
    """Wait until what this process holds was moved, removed or replaced: nobody tells of that, and nobody who looks
    there finds us."""
    while is_in_place():  # noqa: ASYNC110 - nobody tells of it
        await anyio.sleep(_PLACE_EVERY_S)


@asynccontextmanager
async def watching(opened: Execution, lock: RunLock) -> AsyncIterator[None]:
    """Around the scope of the run, which is what an abort cancels."""
    with UnwrappedErrors():
        async with anyio.create_task_group() as beside:
            await beside.start(opened.board.follow, opened.owner.watcher)
            beside.start_soon(_follow_signals, opened)
            beside.start_soon(_keep_time, opened)
            beside.start_soon(_keep_journal, opened)
            beside.start_soon(_keep_place, opened, lock)
            try:
                yield
            finally:
                beside.cancel_scope.cancel()


async def _follow_signals(opened: Execution) -> None:
    """Abort now; of a stop, tell those who show it, and let tasks notice that one was taken back."""
    board, shown = opened.board, None
    while True:
        if board.abort is not None:
            if opened.replies_out is not None:  # an agent that asked for it through us hears that it was heard
                await opened.replies_out()
            opened.end_now(opened.gate.aborted())
        request = board.abort or board.stop
        if request is not shown:
            _emit_request(opened, request, shown)
            shown = request
        opened.interpreter.stir()
        await board.wait_changed()


async def _keep_time(opened: Execution) -> None:
    """Boundaries look at it too: this is for a step that takes too long."""
    while True:
        opened.gate.tick()
        left_s = opened.gate.time_left_s()
        if left_s is None:
            return
        if left_s <= 0:
            opened.end_now(opened.gate.out_of_time())
            return
        await anyio.sleep(left_s)


async def _keep_place(opened: Execution, lock: RunLock) -> None:
    """No signal reaches a run whose directory is elsewhere now, and what it does is kept nowhere."""
    await displaced(lock.is_in_place)
    where = opened.board.subject.own_directory
    opened.end_now(Ending("interrupted", f"{where} was moved, removed or replaced while the run was executed"))


async def _keep_journal(opened: Execution) -> None:
    """What a locked journal could not take is written when it can."""
    try:
        await opened.ledger.keep_up()
    except StoreError as error:
        opened.lose(error)


def _emit_request(opened: Execution, request: Request | None, before: Request | None) -> None:
    data: dict[str, Any] = {"signal": before.kind if before else "stop", "cancelled": True}
    if request is not None:
        path = request.signal.path if request.signal else None
        data = {"signal": request.kind, "reason": request.reason, "source": request.source, "path": path}
    opened.say(kinds.SIGNAL, data)


# Workflows that have a workspace to themselves: while one run is at work there, or will be, another is refused.


_WORKFLOWS = frozenset({"iterate"})
_BEGIN_S = 120.0  # a run that is pending for longer has lost whoever was to execute it


def refuse_second(journal: Journal, root: str, workflow: str, workspace: str | None, run_id: str | None = None) -> None:
    """InputError where another run of the workflow has the workspace. `run_id`: the run that asks, if it exists."""
    if workflow not in _WORKFLOWS or workspace is None:
        return
    for other in journal.runs(workspace=workspace):
        if other.run_id != run_id and other.workflow == workflow and _has_it(root, other):
            raise InputError(
                f"run {other.run_id} of {workflow} has the workspace {os.path.basename(workspace)} already, it is "
                f"{other.status}: let it end, or end it (sidecar stop --run {other.run_id})"
            )


def _has_it(root: str, run: StoredRun) -> bool:
    if is_live(root, run.run_id) or run.status == "paused":
        return True
    if run.status == "pending":
        return time.time() - run.created_at < _BEGIN_S
    if run.status == "running" and run.driver == "agent":
        return True
    # Its owner is gone. Whoever began it in a terminal may begin anew; one that is detached goes on by itself.
    return run.status in ("running", "interrupted") and bool(run.details.get("detached"))
