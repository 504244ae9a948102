"""What is known of one run at any moment, gathered from its events; it never raises, whatever an event holds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args

from sidecar.display.crew import Crew
from sidecar.display.fields import count, message, text
from sidecar.display.iterations import Iterations, outermost
from sidecar.display.tasks import Tasks
from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.model.events import RunEvent, Status

_NOTES = 1000
_STATUSES = frozenset(get_args(kinds.Status))


class Note(NamedTuple):
    """Something that the run says to people: a message of the workflow, or a problem."""

    text: str
    is_problem: bool = False


class Asked(NamedTuple):
    """A signal that stands."""

    reason: str
    source: str
    path: str


class _Inner(NamedTuple):
    id: str
    of: int | None
    at: float


class Progress:
    """One run. What the events do not tell, whoever starts the run may: the workspace, the mode."""

    def __init__(self, *, workflow: str = "", workspace: str = "", mode: str = "") -> None:
        self.run_id = ""
        self.workflow = workflow
        self.workspace = workspace
        self.mode = mode
        self.status: Status = "pending"
        self.reason = ""
        self.step = ""
        self.step_type = ""
        self.attempt = 1
        self.steps_done = 0
        self.loop: Iterations | None = None  # the outermost
        self._inner: _Inner | None = None
        self.tasks = Tasks()
        self.crew = Crew()
        self.notes: deque[Note] = deque(maxlen=_NOTES)
        self.waits_for = ""  # what a person is asked
        self.asked: dict[str, Asked] = {}
        self.updated_at: float | None = None
        self._began_at: float | None = None
        self._worked_s = 0.0  # before the last resume
        self._ended_at: float | None = None

    def hear(self, event: RunEvent) -> None:
        """Take in what happened."""
        handle = _HANDLERS.get(event.kind)
        if handle is not None:
            handle(self, event.data, event.at)
        self.run_id = event.run_id
        self.updated_at = event.at

    def elapsed_s(self, now: float) -> float:
        """How long it has worked, without the time between its end and a resume."""
        if self._began_at is None:
            return self._worked_s
        return self._worked_s + max(0.0, (now if self._ended_at is None else self._ended_at) - self._began_at)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, resumable or not."""
        return self._ended_at is not None

    # --- one method a kind of event

    def _began(self, data: dict[str, Any], at: float) -> None:
        # An owner that died told no end; then the last that was heard of it counts.
        self._worked_s = self.elapsed_s(self.updated_at or at)
        self._began_at, self._ended_at = at, None
        self.crew.dismiss()
        self._inner = None
        self.tasks.forget_running()
        if self.loop is not None:
            self.loop.interrupt()
        self.workflow = text(data.get("workflow")) or self.workflow
        self.workspace = text(data.get("workspace")) or self.workspace
        inputs = data.get("inputs")
        mode = data.get("mode") or (inputs.get("mode") if isinstance(inputs, dict) else None)
        self.mode = text(mode) or self.mode
        self.status, self.reason, self.waits_for = "running", "", ""
        self.asked.clear()

    def _ended(self, data: dict[str, Any], at: float) -> None:
        status = text(data.get("status"))
        self.status = cast("Status", status) if status in _STATUSES else "failed"
        self.reason = text(data.get("reason"))
        self._ended_at = at
        self.crew.dismiss()
        if self.loop is not None:
            limit = text(data.get("limit"))
            # A stop is obeyed between two iterations, so the last one is complete; so it is where a loop's end came.
            complete = self.status in ("completed", "stopped") or "iteration" in limit
            (self.loop.end(at) if complete else self.loop.interrupt())
        if self.status != "paused":
            self.waits_for = ""

    def _step_began(self, data: dict[str, Any], at: float) -> None:
        key, step = text(data.get("step")), text(data.get("id"))
        task = self.tasks.running.get(text(data.get("task")))
        if task is not None:
            task.doing = step or key
            return
        self._find_loop(key, at)
        self.step, self.step_type = step or key, text(data.get("type"))
        self.attempt = count(data.get("attempt")) or 1
        self._works()

    def _find_loop(self, key: str, at: float) -> None:
        """Iterations are told with the loop's id only; where a step stands tells which loop is around which."""
        inner, self._inner = self._inner, None
        found = outermost(key)
        if found is None:
            if self.loop is not None:
                self.loop.end(at)
        elif self.loop is None or self.loop.id != found[0]:
            self.loop = Iterations(found[0])
            told = inner if inner is not None and inner.id == found[0] else None
            self.loop.begin(found[1], told.of if told else None, told.at if told else at)

    def _step_done(self, data: dict[str, Any], at: float) -> None:
        self.steps_done += 1
        if data.get("task") is None:  # of steps that take no time nothing else is told
            self._find_loop(text(data.get("step")), at)

    def _step_failed(self, data: dict[str, Any], _at: float) -> None:
        step = text(data.get("id")) or text(data.get("step"))
        again = ", is tried again" if data.get("will_retry") else ""
        self.notes.append(Note(f"step {step} failed{again}: {message(data.get('error'))}", is_problem=True))

    def _evaluated(self, data: dict[str, Any], _at: float) -> None:
        outcome = data.get("outcome")
        items = outcome[-1] if isinstance(outcome, list) and outcome else None
        if data.get("field") == "items" and isinstance(items, list):
            self.tasks.expect(_place(data), len(items))

    def _iterated(self, data: dict[str, Any], at: float) -> None:
        loop, number, of = text(data.get("step")), count(data.get("iteration")), count(data.get("of"))
        task = self.tasks.running.get(text(data.get("task")))
        if task is not None:
            task.doing = f"iteration {number}"
        elif self.loop is None or self.loop.id == loop or self.loop.is_over:
            if self.loop is None or self.loop.id != loop:
                self.loop = Iterations(loop)
            self.loop.begin(number, of or None, at)
            self._works()
        else:
            self._inner = _Inner(loop, of or None, at)  # inside of the present one or behind it: the next step tells

    def _task_began(self, data: dict[str, Any], at: float) -> None:
        batch = f"{_place(data)}#{text(data.get('batch'))}"
        self.tasks.begin(text(data.get("task")), batch, _place(data), at)
        self._works()

    def _task_ended(self, data: dict[str, Any], at: float) -> None:
        error = data.get("error")
        told = None if error is None else message(error)
        self.tasks.end(text(data.get("task")), at, told, again=bool(data.get("will_retry")))

    def _retried(self, data: dict[str, Any], _at: float) -> None:
        self.notes.append(Note(f"from the start again, round {text(data.get('round'))}", is_problem=True))
        self.loop = None

    def _told(self, data: dict[str, Any], _at: float) -> None:
        self.notes.append(Note(text(data.get("text"))))

    def _warned(self, data: dict[str, Any], _at: float) -> None:
        self.notes.append(Note(text(data.get("text")), is_problem=True))

    def _asks(self, data: dict[str, Any], _at: float) -> None:
        self.waits_for = text(data.get("prompt"))

    def _gate(self, data: dict[str, Any], _at: float) -> None:
        self.status = "paused"
        self.waits_for = f"approval of {text(data.get('stage')) or text(data.get('kind'))}"

    def _answered(self, _data: dict[str, Any], _at: float) -> None:
        self._works()

    def _signalled(self, data: dict[str, Any], _at: float) -> None:
        signal = text(data.get("signal"))
        if data.get("cancelled"):
            self.asked.pop(signal, None)
        elif signal:
            self.asked[signal] = Asked(*(text(data.get(name)) for name in ("reason", "source", "path")))

    def _works(self) -> None:
        if not self.is_over:
            self.status, self.waits_for = "running", ""


def _place(data: dict[str, Any]) -> str:
    """A `parallel_foreach`, as its list and its tasks are told with it."""
    return f"{text(data.get('thread'))}/{text(data.get('step'))}"


_HANDLERS: dict[str, Callable[[Progress, dict[str, Any], float], None]] = {
    kinds.RUN_STARTED: Progress._began,
    kinds.RUN_RESUMED: Progress._began,
    kinds.RUN_ENDED: Progress._ended,
    kinds.STEP_STARTED: Progress._step_began,
    kinds.STEP_COMPLETED: Progress._step_done,
    kinds.STEP_FAILED: Progress._step_failed,
    kinds.EVALUATED: Progress._evaluated,
    kinds.ITERATION: Progress._iterated,
    kinds.TASK_STARTED: Progress._task_began,
    kinds.TASK_ENDED: Progress._task_ended,
    kinds.AGENT_STARTED: lambda self, data, at: self.crew.began(data, at),
    kinds.AGENT_ENDED: lambda self, data, at: self.crew.ended(data, at),
    kinds.USAGE: lambda self, data, at: self.crew.spent(data, at),
    kinds.WORKFLOW_RETRIED: Progress._retried,
    kinds.ACTIVITY: lambda self, data, at: self.crew.acted(data, at),
    kinds.AGENT_OUTPUT: lambda self, data, at: self.crew.said(data, at),
    kinds.MESSAGE: Progress._told,
    kinds.WARNING: Progress._warned,
    kinds.QUESTION: Progress._asks,
    kinds.ANSWERED: Progress._answered,
    kinds.GATE: Progress._gate,
    kinds.SIGNAL: Progress._signalled,
}
