"""A run in the hands of this process: brought into memory from the journal, with everything that its loop needs."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from sidecar import layout
from sidecar.agents.mask import Secrets
from sidecar.catalog import imports
from sidecar.engine import approval
from sidecar.engine.boundary import Gate
from sidecar.engine.context import Surroundings
from sidecar.engine.interpreter import Interpreter
from sidecar.engine.mcp_client.clients import McpClients
from sidecar.engine.parallel import Batches
from sidecar.engine.processes import Processes
from sidecar.engine.record import repeats
from sidecar.engine.record.image import Image, back_to_boundary
from sidecar.engine.record.ledger import Ledger
from sidecar.engine.record.replaying import replay
from sidecar.errors import InputError, StoreError
from sidecar.model import run as kinds
from sidecar.model.run import RunEvent
from sidecar.signals import liveness
from sidecar.signals.board import Board, Request, Subject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import TaskGroup

    from sidecar.catalog.imports import Definition
    from sidecar.engine.context import Person
    from sidecar.engine.ending import Ending
    from sidecar.engine.owner import Owner
    from sidecar.model.agent import EndReason
    from sidecar.model.workflow import RunLimits
    from sidecar.store.journal import Journal, StoredRun

BUSY_S = 5.0  # how long a call on a run waits for another one to be over
_LOCK_EVERY_S = 0.01
NOTED_STOP = "noted_stop"  # in a run's details: a stop that did not wait for the step that an agent has in hand
REQUEST = "request"  # in a run's details: somebody handed it over, under this id and with this environment
CHANGED = "definition"  # in a run's details: the one that took the place of the one that it was started with


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


def signal_directories(root: str, run: StoredRun) -> tuple[str, ...]:
    """The directories that govern a run, its own one last."""
    where = [layout.state_directory(root), run.workspace, layout.run_directory(root, run.run_id)]
    return tuple(directory for directory in where if directory)


def subject_of(root: str, run: StoredRun) -> Subject:
    """The run as signals see it, since its last beginning."""
    mark = liveness.mark(root, run.run_id)
    return Subject(run.run_id, signal_directories(root, run), mark.standing if mark else frozenset())


def board_of(owner: Owner, run: StoredRun, report: Callable[[str], None] = lambda _: None) -> Board:
    """What is asked of the run, the stop that was noted for it included."""
    noted = run.details.get(NOTED_STOP)
    request = None
    if noted and noted["start"] == run.start:
        request = Request("stop", noted["reason"], "file", noted["since"], None)
    return Board(subject_of(owner.root, run), taken=owner.journal.signals(run.run_id), noted=request, report=report)


def stood_as(journal: Journal, run: StoredRun) -> str:
    """What the run was before it is gone on with: one that had ended is pending since it began again."""
    last = journal.last_end(run.run_id) if run.status == "pending" else None
    return str(last.data["status"]) if last is not None else run.status


def definition_of(journal: Journal, run: StoredRun) -> dict[str, Any]:
    """The record of the definition that the run goes by: the one that it was started with, or was resumed with."""
    record: dict[str, Any] = run.details.get(CHANGED) or json.loads(journal.definition(run.run_id))
    return record


def load(owner: Owner, run: StoredRun, definition: Definition | None = None) -> Image:
    """The run as the journal has it: the last checkpoint, and what came after.

    `definition`: in place of the one that it has; DefinitionChanged where the run does not fit into it.
    """
    image = _load(owner, run)
    if definition is None:
        return image
    try:
        # What was journalled belongs to the definition of then: only where the run stands is taken over.
        changed = Image.restore(json.loads(json.dumps(image.to_json())), definition, owner.script)
    finally:
        image.spaces.close()
    try:
        events = owner.journal.events(run.run_id)
        repeats.refuse(changed.main, {event.data["step"] for event in events if event.kind == kinds.STEP_COMPLETED})
    except BaseException:
        changed.spaces.close()
        raise
    return changed


def _load(owner: Owner, run: StoredRun) -> Image:
    kept = owner.checkpoints.last(run.run_id)
    definition = imports.restore(definition_of(owner.journal, run))
    if kept is None:
        return Image.begin(definition, run.inputs, owner.script)
    image = Image.restore(kept.content, definition, owner.script)
    replay(image, owner.journal.events(run.run_id, after=kept.content["seq"]), kept.at)
    image.spaces.take_traces()  # the journal has what was computed, and when; this was only to have the values again
    return image


def prepare_resume(owner: Owner, run: StoredRun, image: Image, feedback: str | None, *, approve: bool = False) -> None:
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


class OpenRun:
    """One run, its lock held by this process. `hear` is told everything that happens."""

    def __init__(
        self,
        owner: Owner,
        run: StoredRun,
        image: Image,
        hear: Callable[[RunEvent], None],
        *,
        person: Person | None = None,
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
        self.around = Surroundings(
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

        failure: Exception | None = None
        async with clients, anyio.create_task_group() as group:
            interpreter.work.around = replace(around, clients=clients)
            self.group = group
            self.batches = interpreter.batches = Batches(interpreter, group, self.end_now)
            try:
                yield
            except Exception as error:  # raised again outside: a task group would wrap it
                failure = error
            self.group = None
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def note(self, ending: Ending) -> None:
        """How it ends; what was known first counts."""
        self.ending = self.ending or ending

    def end_now(self, ending: Ending, reason: EndReason | None = None, *, within_s: float | None = None) -> None:
        """End its processes, and with them this start; `within_s`: another grace than the usual one."""
        self.note(ending)
        self.processes.request_end(reason or end_reason(ending), within_s=within_s)
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


def end_reason(ending: Ending) -> EndReason:
    """Why processes are ended with a run that ends like this."""
    if ending.limit:
        return "budget"
    return "abort" if ending.status == "aborted" else "shutdown"


def _limits(image: Image) -> RunLimits:
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
