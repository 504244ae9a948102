"""What a run tells of itself: events that the journal keeps and everyone who watches a run hears."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Driver = Literal["server", "agent"]
Status = Literal["pending", "running", "paused", "completed", "failed", "aborted", "stopped", "interrupted"]

# Kinds of events. `step` is a step's key: its id with the loops and tasks around it; `task` the task's id, if any.
RUN_STARTED = "run_started"  # workflow
RUN_RESUMED = "run_resumed"  # workflow, and what it was before: `was`
RUN_ENDED = "run_ended"  # status, reason, limit (which one was reached)
STEP_STARTED = "step_started"  # step, id, type, attempt, task
STEP_COMPLETED = "step_completed"  # step, id, type, task; outcome: what the cursor was told
STEP_FAILED = "step_failed"  # step, id, type, task, error
FAILURE_STEPS = "failure_steps"  # word, path, names: the steps begin that a workflow or a task has for its failure
SETTLED = "settled"  # step: what a failed step leaves behind is written
EVALUATED = "evaluated"  # step, field, outcome: an answer that the cursor was told
ITERATION = "iteration"  # step, iteration (from 1), of (where known)
TASK_STARTED = "task_started"  # task, step, index, names
TASK_ENDED = "task_ended"  # task, error where it failed, again: whether it is tried again
AGENT_STARTED = "agent_started"  # agent_id, pid, name, command, log, step, task
AGENT_ENDED = "agent_ended"  # agent_id, pid, name, reason, exit_code, rung, duration_s, survivors
SPENT = "spent"  # step, cost_usd, tokens: what an agent says that it cost
# What an agent came to: step, agent_id, session_id, tokens (input, output, cached), cost_usd; structured (JSON text),
# where the tool has that besides its answer; text, where the turn failed: else it is the step's result.
TURN_ENDED = "turn_ended"
RETRIED = "retried"  # round: the workflow is done from the start again (`retry_workflow`)
MESSAGE = "message"  # text, step: `user_message`
QUESTION = "question"  # step, prompt, and what the answer has to be: the run waits for a person
ANSWERED = "answered"  # step, value
GATE = "gate"  # stage, output, kind: the run pauses until somebody has seen it
REDIRECTED = "redirected"  # step, text
FEEDBACK = "feedback"  # step, text: what was said at a resume goes into the prompt of this step
SIGNAL = "signal"  # signal, path, reason, source: something is asked of the run; or `cancelled`
WARNING = "warning"  # text
# Never journalled, the log has it: agent_id, stream, lines; json: whether the agent prints JSON objects for programs.
# What those mean is told as activity, which otherwise only repeats what was printed.
SAID = "said"
ACTIVITY = "activity"  # agent_id, json (as above), what an agent does now: never journalled


class RunEvent(NamedTuple):
    """One thing that happened in a run. `seq` is its place in the journal, 0 for what is not kept there."""

    run_id: str
    kind: str
    at: float
    data: dict[str, Any] = {}  # noqa: RUF012 - never changed
    seq: int = 0
