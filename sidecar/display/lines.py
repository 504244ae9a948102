"""A run as plain lines for a pipe or a log: one event a line, in words, without anything that a terminal would obey."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sidecar import text
from sidecar.display.progress import activity_text, error_message, message_lines, printed_lines
from sidecar.model import events as kinds
from sidecar.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.model.events import RunEvent

# Written with `quiet`, too: without an answer the run does not go on.
_NEEDS_A_PERSON = frozenset({kinds.QUESTION, kinds.GATE})
# Steps that only lead to others, or change nothing but the state.
_SILENT = frozenset({"state_update", "conditional", "while", "foreach", "break", "continue", "user_message", "exit"})
_PARALLEL = "parallel_foreach"
_LONGEST = 2000
_MOST_NAMES = 1000


class PlainLines:
    """Writes lines, each with its newline. With `quiet`, only what needs a person."""

    def __init__(self, write: Callable[[str], None], quiet: bool = False) -> None:
        self._write = write
        self._quiet = quiet
        self._names: dict[str, str] = {}  # also of those that ended: their last words can come after that
        self._doing: dict[str, str] = {}
        self._began: dict[str, float] = {}  # steps and tasks that are under way
        self._with_tasks: set[tuple[str, str]] = set()  # those of them that a line was written of

    def on_event(self, event: RunEvent) -> None:
        """Write the lines of one event, if it is worth any."""
        if self._quiet and event.kind not in _NEEDS_A_PERSON:
            return
        lines_of = _LINES_OF.get(event.kind)
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        for line in lines_of(self, event) if lines_of is not None else ():
            self._write(f"{clock} {clean(line)[:_LONGEST]}\n")

    # --- one method a kind of event: its lines

    def _started(self, event: RunEvent) -> list[str]:
        return [f"started {event.data.get('workflow', '')}, run {event.run_id}"]

    def _resumed(self, event: RunEvent) -> list[str]:
        was = event.data.get("previous_status")
        return [f"resumed {event.data.get('workflow', '')} (was: {was}), run {event.run_id}"]

    def _ended(self, event: RunEvent) -> list[str]:
        status, reason, limit = event.data.get("status", "ended"), event.data.get("reason"), event.data.get("limit")
        why = f": {reason}" if reason and reason != status else ""
        return [f"{status}{why}" + (f" (limit: {limit})" if limit else "")]

    def _step_started(self, event: RunEvent) -> list[str]:
        data = event.data
        if data.get("type") in _SILENT:
            return []
        self._began[_key(data)] = event.at
        attempt = data.get("attempt", 1)
        if data.get("type") == _PARALLEL and not self._is_first(data.get("task"), data.get("id")):
            return []
        return [f"{_step(data)}: {data.get('type', 'started')}" + (f", attempt {attempt}" if attempt != 1 else "")]

    def _step_completed(self, event: RunEvent) -> list[str]:
        began_at = self._over(event.data)
        return [] if began_at is None else [f"{_step(event.data)}: done in {text.duration(event.at - began_at)}"]

    def _step_failed(self, event: RunEvent) -> list[str]:
        self._over(event.data)
        again = ", will be retried" if event.data.get("will_retry") else ""
        return [f"{_step(event.data)}: failed{again}: {error_message(event.data.get('error'))}"]

    def _over(self, data: dict[str, Any]) -> float | None:
        self._with_tasks.discard((str(data.get("task") or ""), str(data.get("id"))))
        return self._began.pop(_key(data), None)

    def _is_first(self, around: Any, step: Any) -> bool:
        """Whether this is the first line of a step with tasks: its first tasks begin before it does."""
        key = (str(around or ""), str(step))
        is_first = key not in self._with_tasks
        self._with_tasks.add(key)
        return is_first

    def _iteration(self, event: RunEvent) -> list[str]:
        of = event.data.get("of")
        return [f"{_last_word(event.data)}: iteration {event.data.get('iteration', '')}" + (f" of {of}" if of else "")]

    def _task_started(self, event: RunEvent) -> list[str]:
        task = str(event.data.get("task"))
        self._began["task " + task] = event.at
        around, step = task.rpartition("/")[0], event.data.get("step")
        of_step = (
            [f"{_step({'id': step, 'task': around})}: {_PARALLEL}"] if step and self._is_first(around, step) else []
        )
        return [*of_step, f"task {task}: started"]

    def _task_ended(self, event: RunEvent) -> list[str]:
        task, error = str(event.data.get("task")), event.data.get("error")
        took_s = event.at - self._began.pop("task " + task, event.at)
        if error is None:
            return [f"task {task}: done in {text.duration(took_s)}"]
        again = ", will be retried" if event.data.get("will_retry") else ""
        return [f"task {task}: failed{again}: {error_message(error)}"]

    def _agent_started(self, event: RunEvent) -> list[str]:
        data = event.data
        name = str(data.get("name") or data.get("agent_id", "agent"))
        self._names[str(data.get("agent_id"))] = f"{name} of {data['task']}" if data.get("task") else name
        while len(self._names) > _MOST_NAMES:
            del self._names[next(iter(self._names))]
        return [] if _is_command(data) else [f"{name}: started, pid {data.get('pid')}"]

    def _agent_ended(self, event: RunEvent) -> list[str]:
        data, agent = event.data, str(event.data.get("agent_id"))
        name = self._names.get(agent) or str(data.get("name", "agent"))
        self._doing.pop(agent, None)
        reason, code = data.get("reason", "exited"), data.get("exit_code")
        facts = [f"exited with {code}" if reason == "exited" and code is not None else f"ended: {reason}"]
        if isinstance(data.get("duration_s"), (int, float)):
            facts.append(f"after {text.duration(data['duration_s'])}")
        if data.get("survivors"):
            facts.append(f"{data['survivors']} processes survived")
        is_worth_it = not _is_command(data) or (reason, code) != ("exited", 0)
        return [f"{name}: {', '.join(facts)}"] if is_worth_it else []

    def _spent(self, event: RunEvent) -> list[str]:
        cost, tokens = event.data.get("cost_usd"), event.data.get("tokens")
        facts = [text.cost(cost)] if isinstance(cost, (int, float)) else []
        facts += [f"{text.tokens(tokens)} tokens"] if isinstance(tokens, int) and tokens else []
        return [f"step {_last_word(event.data)}: {', '.join(facts)}"] if facts else []

    def _output(self, event: RunEvent) -> list[str]:
        agent, shown = str(event.data.get("agent_id")), printed_lines(event.data)
        dropped = event.data.get("dropped")
        return self._words(agent, [f"({dropped} lines left out)", *shown] if dropped and shown else shown)

    def _activity(self, event: RunEvent) -> list[str]:
        agent = str(event.data.get("agent_id"))
        lines = self._words(agent, message_lines(event.data))
        now = activity_text(event.data)
        if now is None or self._doing.get(agent) == now:
            return lines
        self._doing[agent] = now
        return [*lines, f"{self._names.get(agent, 'agent')}: {now}"] if now else lines

    def _words(self, agent: str, lines: list[str]) -> list[str]:
        name = self._names.get(agent)
        return [f"{name} | {line}" if name else f"| {line}" for line in lines]

    def _message(self, event: RunEvent) -> list[str]:
        return str(event.data.get("text", "")).splitlines() or [""]

    def _warning(self, event: RunEvent) -> list[str]:
        return [f"warning: {event.data.get('text', '')}"]

    def _question(self, event: RunEvent) -> list[str]:
        return [f"waits for an answer: {event.data.get('prompt', '')} (sidecar answer {event.run_id} VALUE)"]

    def _gate(self, event: RunEvent) -> list[str]:
        stage = event.data.get("stage") or event.data.get("kind", "")
        approve = f"sidecar resume {event.run_id} --approve, or --feedback TEXT to send it back"
        return [f"paused for approval of {stage} ({approve})"]

    def _redirected(self, event: RunEvent) -> list[str]:
        return [f"redirected: {event.data.get('text', '')}"]

    def _retried(self, event: RunEvent) -> list[str]:
        return [f"from the start again, round {event.data.get('round', '')}"]

    def _signal(self, event: RunEvent) -> list[str]:
        data = event.data
        signal = data.get("signal", "signal")
        if data.get("cancelled"):
            return [f"{signal} cancelled"]
        where = f" {data['path']}" if data.get("path") else ""
        what = ", after this iteration" if signal == "stop" else ""
        return [f"{signal} requested{what}, by {data.get('source', 'file')}{where}: {data.get('reason', '')}"]


def _is_command(data: dict[str, Any]) -> bool:
    """Whether a process is all that its step does: then the lines of the step are enough."""
    return data.get("name") == _last_word(data)


def _last_word(data: dict[str, Any]) -> str:
    """A step's id, from its key."""
    return str(data.get("step", "")).rpartition("/")[2]


def _key(data: dict[str, Any]) -> str:
    return str(data.get("step") or data.get("id"))


def _step(data: dict[str, Any]) -> str:
    task = data.get("task")
    return f"step {data.get('id') or data.get('step')}" + (f" of task {task}" if task else "")


_LINES_OF: dict[str, Callable[[PlainLines, RunEvent], list[str]]] = {
    kinds.RUN_STARTED: PlainLines._started,
    kinds.RUN_RESUMED: PlainLines._resumed,
    kinds.RUN_ENDED: PlainLines._ended,
    kinds.STEP_STARTED: PlainLines._step_started,
    kinds.STEP_COMPLETED: PlainLines._step_completed,
    kinds.STEP_FAILED: PlainLines._step_failed,
    kinds.ITERATION: PlainLines._iteration,
    kinds.TASK_STARTED: PlainLines._task_started,
    kinds.TASK_ENDED: PlainLines._task_ended,
    kinds.AGENT_STARTED: PlainLines._agent_started,
    kinds.AGENT_ENDED: PlainLines._agent_ended,
    kinds.USAGE: PlainLines._spent,
    kinds.WORKFLOW_RETRIED: PlainLines._retried,
    kinds.AGENT_OUTPUT: PlainLines._output,
    kinds.ACTIVITY: PlainLines._activity,
    kinds.MESSAGE: PlainLines._message,
    kinds.WARNING: PlainLines._warning,
    kinds.QUESTION: PlainLines._question,
    kinds.GATE: PlainLines._gate,
    kinds.REDIRECTED: PlainLines._redirected,
    kinds.SIGNAL: PlainLines._signal,
}
