"""The events of a run: the journal keeps them, and every listener gets them."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Driver = Literal["server", "agent"]
Status = Literal["pending", "running", "paused", "completed", "failed", "aborted", "stopped", "interrupted"]

# Kinds of events, which `logs --json` prints: docs/events.md lists them with their data.
RUN_STARTED = "run_started"
RUN_RESUMED = "run_resumed"
RUN_ENDED = "run_ended"
STEP_STARTED = "step_started"
STEP_COMPLETED = "step_completed"
STEP_FAILED = "step_failed"
ERROR_HANDLED = "error_handled"
FAILURE_STEPS = "failure_steps"
EVALUATED = "evaluated"
ITERATION = "iteration"
TASK_STARTED = "task_started"
TASK_ENDED = "task_ended"
AGENT_STARTED = "agent_started"
AGENT_ENDED = "agent_ended"
TURN_ENDED = "turn_ended"
USAGE = "usage"
WORKFLOW_RETRIED = "workflow_retried"
MESSAGE = "message"
QUESTION = "question"
ANSWERED = "answered"
GATE = "gate"
FEEDBACK = "feedback"
REDIRECTED = "redirected"
CHECKPOINTED = "checkpointed"
STATE_UPDATED = "state_updated"
SIGNAL = "signal"
WARNING = "warning"
# Never journalled: the log of the agent has the output.
AGENT_OUTPUT = "agent_output"
ACTIVITY = "activity"


# The types of steps, as definitions and events have them. They stand here, where nothing is imported for them, because
# lists of workflows do without the models, which have a class for each.
STEP_TYPES = (
    "shell_command",
    "agent_shell_command",
    "agent",
    "mcp_call",
    "state_update",
    "user_input",
    "user_message",
    "apply_hints",
    "conditional",
    "while",
    "foreach",
    "parallel_foreach",
    "include_workflow",
    "break",
    "continue",
    "wait",
    "exit",
)


class RunEvent(NamedTuple):
    """One thing that happened in a run. `seq` is its place in the journal, 0 for what is not kept there."""

    run_id: str
    kind: str
    at: float
    data: dict[str, Any] = {}  # noqa: RUF012 - never changed
    seq: int = 0
