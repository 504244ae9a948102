"""What is known of one run at any moment, gathered from its events; it never raises, whatever an event holds."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.model.events import RunEvent, Status

_MESSAGES = 1000
_STATUSES = frozenset(get_args(kinds.Status))
_FOR_ESTIMATE = 5
_KEPT = 100
_LINES = 200
_LONGEST_LINE = 2048
_NAMES = 1000
_REPEATED = frozenset({"message", "usage", "session_started"})  # nothing that an agent does
State = Literal["running", "done", "failed", "again"]


class RunMessage(NamedTuple):
    """Something that the run says to people: a message of the workflow, or a problem."""

    text: str
    is_problem: bool = False


class ShownSignal(NamedTuple):
    """A signal that stands."""

    reason: str
    source: str
    path: str


class _Inner(NamedTuple):
    id: str
    of: int | None
    at: float


class Progress:
    """One run. The workspace and the mode come from the caller where no event has them."""

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
        self.agents = AgentsShown()
        self.messages: deque[RunMessage] = deque(maxlen=_MESSAGES)
        self.waits_for = ""  # what a person is asked
        self.signals: dict[str, ShownSignal] = {}
        self.updated_at: float | None = None
        self._began_at: float | None = None
        self._worked_s = 0.0  # before the last resume
        self._ended_at: float | None = None

    def on_event(self, event: RunEvent) -> None:
        """Note what happened."""
        if event.kind in _HANDLERS:
            _HANDLERS[event.kind](self, event.data, event.at)
        elif event.kind in _AGENT_HANDLERS:
            _AGENT_HANDLERS[event.kind](self.agents, event.data, event.at)
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

    def _on_start(self, data: dict[str, Any], at: float) -> None:
        # An owner that died emitted no end; then its last event counts.
        self._worked_s = self.elapsed_s(self.updated_at or at)
        self._began_at, self._ended_at = at, None
        self.agents.end_all()
        self._inner = None
        self.tasks.forget_running()
        if self.loop is not None:
            self.loop.interrupt()
        self.workflow = _text(data.get("workflow")) or self.workflow
        self.workspace = _text(data.get("workspace")) or self.workspace
        inputs = data.get("inputs")
        mode = data.get("mode") or (inputs.get("mode") if isinstance(inputs, dict) else None)
        self.mode = _text(mode) or self.mode
        self.status, self.reason, self.waits_for = "running", "", ""
        self.signals.clear()

    def _on_end(self, data: dict[str, Any], at: float) -> None:
        status = _text(data.get("status"))
        self.status = cast("Status", status) if status in _STATUSES else "failed"
        self.reason = _text(data.get("reason"))
        self._ended_at = at
        self.agents.end_all()
        if self.loop is not None:
            limit = _text(data.get("limit"))
            # A stop is obeyed between two iterations, so the last one is complete; so it is where a loop's end came.
            complete = self.status in ("completed", "stopped") or "iteration" in limit
            (self.loop.end(at) if complete else self.loop.interrupt())
        if self.status != "paused":
            self.waits_for = ""

    def _on_step_start(self, data: dict[str, Any], at: float) -> None:
        key, step = _text(data.get("step")), _text(data.get("id"))
        task = self.tasks.running.get(_text(data.get("task")))
        if task is not None:
            task.doing = step or key
            return
        self._find_loop(key, at)
        self.step, self.step_type = step or key, _text(data.get("type"))
        self.attempt = _count(data.get("attempt")) or 1
        self._works()

    def _find_loop(self, key: str, at: float) -> None:
        """Events of iterations have only the loop's id; the key of a step shows which loop is around which."""
        inner, self._inner = self._inner, None
        found = outermost(key)
        if found is None:
            if self.loop is not None:
                self.loop.end(at)
        elif self.loop is None or self.loop.id != found[0]:
            self.loop = Iterations(found[0])
            known = inner if inner is not None and inner.id == found[0] else None
            self.loop.begin(found[1], known.of if known else None, known.at if known else at)

    def _on_step_done(self, data: dict[str, Any], at: float) -> None:
        self.steps_done += 1
        if data.get("task") is None:  # steps that take no time have no other event
            self._find_loop(_text(data.get("step")), at)

    def _on_step_failed(self, data: dict[str, Any], _at: float) -> None:
        step = _text(data.get("id")) or _text(data.get("step"))
        again = ", will be retried" if data.get("will_retry") else ""
        message = f"step {step} failed{again}: {error_message(data.get('error'))}"
        self.messages.append(RunMessage(message, is_problem=True))

    def _on_evaluated(self, data: dict[str, Any], _at: float) -> None:
        outcome = data.get("outcome")
        items = outcome[-1] if isinstance(outcome, list) and outcome else None
        if data.get("field") == "items" and isinstance(items, list):
            self.tasks.expect(_place(data), len(items))

    def _on_iteration(self, data: dict[str, Any], at: float) -> None:
        loop, number, of = _text(data.get("step")), _count(data.get("iteration")), _count(data.get("of"))
        task = self.tasks.running.get(_text(data.get("task")))
        if task is not None:
            task.doing = f"iteration {number}"
        elif self.loop is None or self.loop.id == loop or self.loop.is_over:
            if self.loop is None or self.loop.id != loop:
                self.loop = Iterations(loop)
            self.loop.begin(number, of or None, at)
            self._works()
        else:
            self._inner = _Inner(loop, of or None, at)  # inside of this one or behind it: the next step shows which

    def _on_task_start(self, data: dict[str, Any], at: float) -> None:
        batch = f"{_place(data)}#{_text(data.get('batch'))}"
        self.tasks.begin(_text(data.get("task")), batch, _place(data), at)
        self._works()

    def _on_task_end(self, data: dict[str, Any], at: float) -> None:
        error = data.get("error")
        message = None if error is None else error_message(error)
        self.tasks.end(_text(data.get("task")), at, message, again=bool(data.get("will_retry")))

    def _on_retry(self, data: dict[str, Any], _at: float) -> None:
        self.messages.append(RunMessage(f"from the start again, round {_text(data.get('round'))}", is_problem=True))
        self.loop = None

    def _on_message(self, data: dict[str, Any], _at: float) -> None:
        self.messages.append(RunMessage(_text(data.get("text"))))

    def _on_warning(self, data: dict[str, Any], _at: float) -> None:
        self.messages.append(RunMessage(_text(data.get("text")), is_problem=True))

    def _on_question(self, data: dict[str, Any], _at: float) -> None:
        self.waits_for = _text(data.get("prompt"))

    def _on_gate(self, data: dict[str, Any], _at: float) -> None:
        self.status = "paused"
        self.waits_for = f"approval of {_text(data.get('stage')) or _text(data.get('kind'))}"

    def _on_answer(self, _data: dict[str, Any], _at: float) -> None:
        self._works()

    def _on_signal(self, data: dict[str, Any], _at: float) -> None:
        signal = _text(data.get("signal"))
        if data.get("cancelled"):
            self.signals.pop(signal, None)
        elif signal:
            self.signals[signal] = ShownSignal(*(_text(data.get(name)) for name in ("reason", "source", "path")))

    def _works(self) -> None:
        if not self.is_over:
            self.status, self.waits_for = "running", ""


def _place(data: dict[str, Any]) -> str:
    """A `parallel_foreach`, by what the events of its list and of its tasks have in common."""
    return f"{_text(data.get('thread'))}/{_text(data.get('step'))}"


_HANDLERS: dict[str, Callable[[Progress, dict[str, Any], float], None]] = {
    kinds.RUN_STARTED: Progress._on_start,
    kinds.RUN_RESUMED: Progress._on_start,
    kinds.RUN_ENDED: Progress._on_end,
    kinds.STEP_STARTED: Progress._on_step_start,
    kinds.STEP_COMPLETED: Progress._on_step_done,
    kinds.STEP_FAILED: Progress._on_step_failed,
    kinds.EVALUATED: Progress._on_evaluated,
    kinds.ITERATION: Progress._on_iteration,
    kinds.TASK_STARTED: Progress._on_task_start,
    kinds.TASK_ENDED: Progress._on_task_end,
    kinds.WORKFLOW_RETRIED: Progress._on_retry,
    kinds.MESSAGE: Progress._on_message,
    kinds.WARNING: Progress._on_warning,
    kinds.QUESTION: Progress._on_question,
    kinds.ANSWERED: Progress._on_answer,
    kinds.GATE: Progress._on_gate,
    kinds.SIGNAL: Progress._on_signal,
}


class Iterations:
    """One loop, from its first iteration that we saw; `id` is its step's."""

    def __init__(self, id: str) -> None:  # noqa: A002 - a step's id is called so everywhere
        self.id = id
        self.number = 0  # of the one that is under way
        self.of: int | None = None
        self._began_at: float | None = None
        self._last: deque[float] = deque(maxlen=_FOR_ESTIMATE)
        self._timed = 0
        self._total_s = 0.0
        self.is_over = False

    def begin(self, number: int, of: int | None, at: float) -> None:
        """An iteration begins, so the one before it is over."""
        if number > self.number and self.number:
            self._time(at)
        self.number, self.of = number, self.of if of is None else of
        self._began_at, self.is_over = at, False

    def end(self, at: float) -> None:
        """The loop is over, its last iteration complete."""
        if self.number and not self.is_over:
            self._time(at)
            self.is_over = True

    def interrupt(self) -> None:
        """The time of the present iteration says nothing any more: it was cut off, or the run did not go on."""
        self._began_at = None

    @property
    def done(self) -> int:
        """How many are over, those before a resume included."""
        return self.number if self.is_over else max(0, self.number - 1)

    @property
    def average_s(self) -> float | None:
        """Over all that were timed."""
        return self._total_s / self._timed if self._timed else None

    def remaining_s(self, now: float) -> float | None:
        """How long the rest takes if it goes on like the last five; None before there are five, or without an end."""
        if self.of is None or self.is_over or len(self._last) < _FOR_ESTIMATE:
            return None
        each_s = sum(self._last) / len(self._last)
        spent_s = 0.0 if self._began_at is None else max(0.0, now - self._began_at)
        return max(0, self.of - self.done) * each_s - min(spent_s, each_s)

    def _time(self, at: float) -> None:
        if self._began_at is None:
            return
        took_s = max(0.0, at - self._began_at)
        self._last.append(took_s)
        self._total_s += took_s
        self._timed += 1


def outermost(key: str) -> tuple[str, int] | None:
    """The outermost loop around a step, by the step's key, and which of its iterations that is, counted from 1."""
    for word in key.split("/"):
        name, bracket, index = word.rpartition("[")
        if bracket and index.removesuffix("]").isdecimal():
            return name, int(index.removesuffix("]")) + 1
    return None


@dataclass(slots=True)
class Task:
    """One of them."""

    id: str
    batch: str  # which execution of which `parallel_foreach`
    began_at: float
    state: State = "running"
    ended_at: float | None = None
    doing: str = ""  # its step, or what went wrong

    def lasted_s(self, now: float) -> float:
        """Until its end, or until now."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.began_at)


@dataclass(slots=True)
class _Batch:
    of: int | None = None
    done: int = 0
    failed: int = 0


class Tasks:
    """All tasks of a run. What is over is counted, and only the last of them are kept."""

    def __init__(self) -> None:
        self.running: dict[str, Task] = {}
        self.ended: deque[Task] = deque(maxlen=_KEPT)
        self._batches: dict[str, _Batch] = {}
        self._last_batch = ""
        self._sizes: dict[str, int] = {}  # of lists that may become batches

    def expect(self, step: str, count: int) -> None:
        """A step has so many items; if it has tasks for them, they are a batch."""
        self._sizes[step] = count
        while len(self._sizes) > _KEPT:  # loops have items too, and loops may be long
            del self._sizes[next(iter(self._sizes))]

    def begin(self, task_id: str, batch: str, step: str, at: float) -> None:
        """One is started, or started again. `step` is the one that was given to `expect`."""
        if batch not in self._batches:
            busy = {task.batch for task in self.running.values()}
            self._batches = {key: known for key, known in self._batches.items() if key in busy}
            self._batches[batch] = _Batch(self._sizes.pop(step, None))
            # Rows of an earlier batch would have the same ids.
            self.ended = deque((task for task in self.ended if task.batch in busy), maxlen=_KEPT)
        self._last_batch = batch
        self.running[task_id] = Task(task_id, batch, at)

    def end(self, task_id: str, at: float, error: str | None, *, again: bool) -> None:
        """One is over."""
        task = self.running.pop(task_id, None)
        if task is None:
            return
        task.state = ("again" if again else "failed") if error is not None else "done"
        task.ended_at, task.doing = at, error or ""
        batch = self._batches[task.batch]
        batch.done += task.state == "done"
        batch.failed += task.state == "failed"
        self.ended.append(task)

    def forget_running(self) -> None:
        """The run begins anew: whatever was under way is not."""
        self.running.clear()

    def count(self) -> tuple[int, int, int | None]:
        """Of the batches that are under way (else the last one): how many are over, failed, and there are at all."""
        busy = {task.batch for task in self.running.values()} or {self._last_batch}
        batches = [batch for key, batch in self._batches.items() if key in busy]
        sizes = [batch.of for batch in batches]
        of = None if None in sizes else sum(size for size in sizes if size is not None)
        failed = sum(batch.failed for batch in batches)
        return sum(batch.done for batch in batches) + failed, failed, of

    def rows(self, most: int) -> list[Task]:
        """The ones to show: what runs, then what ended last."""
        running = list(islice(self.running.values(), most))
        return running + list(islice(reversed(self.ended), max(0, most - len(running))))

    def __bool__(self) -> bool:
        return bool(self._batches)


@dataclass(slots=True)
class ShownAgent:
    """A process that works for the run."""

    id: str
    name: str
    pid: int | None
    began_at: float
    step: str = ""
    task: str | None = None
    doing: str = ""
    cost_usd: float | None = None  # as far as it is known
    tokens: int = 0


class OutputLine(NamedTuple):
    """Something that an agent printed, as it came."""

    source: str  # the task, where there is one, else the agent
    stream: str
    text: str


class AgentsShown:
    """All of them. Each method takes the data of an event, and when it happened."""

    def __init__(self) -> None:
        self.running: dict[str, ShownAgent] = {}
        self.lines: deque[OutputLine] = deque(maxlen=_LINES)
        self._names: dict[str, str] = {}  # of those whose lines are kept
        self._cost_usd: float | None = None  # of what is settled, as the tokens
        self._tokens = 0
        self._unsettled: dict[str, ShownAgent] = {}  # by step: ended, and the last word about its cost is still to come

    @property
    def cost_usd(self) -> float | None:
        """So far, where any agent reports it."""
        costs = [agent.cost_usd for agent in self._counted() if agent.cost_usd is not None]
        return (self._cost_usd or 0.0) + sum(costs) if costs or self._cost_usd is not None else None

    @property
    def tokens(self) -> int:
        """So far."""
        return self._tokens + sum(agent.tokens for agent in self._counted())

    def _counted(self) -> list[ShownAgent]:
        return [*self.running.values(), *self._unsettled.values()]

    def on_start(self, data: dict[str, Any], at: float) -> None:
        """One is started."""
        agent_id = _text(data.get("agent_id"))
        name, task = _text(data.get("name")) or agent_id, _text(data.get("task")) or None
        pid = _count(data.get("pid")) or None
        self.running[agent_id] = ShownAgent(agent_id, name, pid, at, _text(data.get("step")), task)
        self._names.pop(agent_id, None)
        self._names[agent_id] = task or name
        while len(self._names) > _NAMES:
            del self._names[next(iter(self._names))]

    def on_end(self, data: dict[str, Any], _at: float) -> None:
        """One is over."""
        agent_id = _text(data.get("agent_id"))
        agent = self.running.pop(agent_id, None)
        if agent is not None and (agent.tokens or agent.cost_usd is not None):
            self._unsettled[agent.step] = agent

    def end_all(self) -> None:
        """The run is over, or begins anew: none of them lives."""
        for agent_id in list(self.running):
            self.on_end({"agent_id": agent_id}, 0.0)

    def on_usage(self, data: dict[str, Any], _at: float) -> None:
        """The final amount, in place of what an agent reported while it worked."""
        step = _text(data.get("step"))
        self._unsettled.pop(step, None)
        for agent in self.running.values():
            if agent.step == step:
                agent.cost_usd, agent.tokens = None, 0
        usd = _cost(data.get("cost_usd"))
        if usd is not None:
            self._cost_usd = (self._cost_usd or 0.0) + usd
        self._tokens += _tokens(data.get("tokens"))

    def on_activity(self, data: dict[str, Any], _at: float) -> None:
        """One reports what it does."""
        agent_id = _text(data.get("agent_id"))
        self._show(agent_id, "stdout", message_lines(data))
        agent = self.running.get(agent_id)
        if agent is not None:
            now = activity_text(data)
            agent.doing = agent.doing if now is None else now
            agent.cost_usd = _cost(data.get("cost_usd"), agent.cost_usd)
            agent.tokens = _tokens(data.get("tokens")) or agent.tokens

    def on_output(self, data: dict[str, Any], _at: float) -> None:
        """One has printed something."""
        lines = data.get("lines")
        if isinstance(lines, list):
            # Only the last ones: a flood has to cost nothing.
            shown = printed_lines({**data, "lines": [_text(line)[:_LONGEST_LINE] for line in lines[-_LINES:]]})
            self._show(_text(data.get("agent_id")), _text(data.get("stream")), shown)

    def _show(self, agent_id: str, stream: str, lines: list[str]) -> None:
        source = self._names.get(agent_id, agent_id)
        self.lines.extend(OutputLine(source, stream, line) for line in lines[-_LINES:])


_AGENT_HANDLERS: dict[str, Callable[[AgentsShown, dict[str, Any], float], None]] = {
    kinds.AGENT_STARTED: AgentsShown.on_start,
    kinds.AGENT_ENDED: AgentsShown.on_end,
    kinds.USAGE: AgentsShown.on_usage,
    kinds.ACTIVITY: AgentsShown.on_activity,
    kinds.AGENT_OUTPUT: AgentsShown.on_output,
}


def printed_lines(data: dict[str, Any]) -> list[str]:
    """What is to be shown of the lines that an agent printed: objects only where they are meant for people."""
    lines = data.get("lines")
    if not isinstance(lines, list):
        return []
    texts = list(map(str, lines))
    return [line for line in texts if not line.lstrip().startswith("{")] if data.get("json") else texts


def message_lines(data: dict[str, Any]) -> list[str]:
    """A message of an agent, where it does not only repeat what the agent printed."""
    is_new = data.get("json") and data.get("activity") == "message"
    return str(data.get("text") or "").splitlines() if is_new else []


def activity_text(data: dict[str, Any]) -> str | None:
    """What an activity says that the agent does now: empty for nothing in particular, None where it says nothing."""
    activity = data.get("activity")
    if activity in ("tool_ended", "resumed"):
        return ""
    if activity in _REPEATED:
        return None
    if activity == "tool_started":
        return str(data.get("name") or "")
    if activity == "waiting":
        return _waits(data)
    if activity == "denied":
        return f"not permitted: {data.get('name')}"
    if activity == "failed":
        return str(data.get("message") or "failed")
    text = data.get("text")
    return None if text is None else str(text)


def _waits(data: dict[str, Any]) -> str:
    until = data.get("until")
    what = str(data.get("what") or "something").replace("_", " ")
    if not isinstance(until, (int, float)):
        return f"waits: {what}"
    try:
        return f"waits: {what}, until {time.strftime('%H:%M', time.localtime(until))}"
    except (ValueError, OverflowError, OSError):  # no moment that a clock knows
        return f"waits: {what}"


def _text(value: object) -> str:
    """Empty for nothing."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def _count(value: object) -> int:
    """0 for whatever counts nothing."""
    return value if isinstance(value, int) and value > 0 else 0


def _cost(value: object, known: float | None = None) -> float | None:
    """In dollars; what was known where there is no amount."""
    return float(value) if isinstance(value, (int, float)) else known


def _tokens(value: object) -> int:
    """A total, or its parts; what came from a cache is part of the input."""
    if isinstance(value, dict):
        return _count(value.get("input")) + _count(value.get("output"))
    return _count(value)


def error_message(error: object) -> str:
    """An error of a step or a task in words."""
    return _text(error.get("message") if isinstance(error, dict) else error)
