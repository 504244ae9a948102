"""Ids for the steps that have none: their position in the file.

A step at the top is `<index>.<type>`: `2.while`. One inside another is `<id of that one>.<key>.<index>.<type>`, so the
first step of that loop is `2.while.body.0.shell_command`, and where the loop has the id `fix`, it is
`fix.body.0.shell_command`. Steps of a task begin with `tasks/<name>.`, those of the error handling with `on_failure.`
and `tasks/<name>.cleanup_on_error.`. Ids that people give contain neither `.` nor `/`: the two cannot meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.model.steps_control import branches

if TYPE_CHECKING:
    from sidecar.model.steps_control import Step
    from sidecar.model.workflow import SubAgentTask, Workflow


def numbered(workflow: Workflow) -> Workflow:
    """The workflow with an id on every step."""
    changes: dict[str, Any] = {}
    if workflow.steps is not None:
        changes["steps"] = _steps(workflow.steps, "")
    if workflow.sub_agent_tasks is not None:
        changes["sub_agent_tasks"] = {name: _task(name, task) for name, task in workflow.sub_agent_tasks.items()}
    if workflow.error_handling.on_failure is not None:
        on_failure = _steps(workflow.error_handling.on_failure, "on_failure.")
        changes["error_handling"] = workflow.error_handling.model_copy(update={"on_failure": on_failure})
    return workflow.model_copy(update=changes)


def _task(name: str, task: SubAgentTask) -> SubAgentTask:
    prefix = f"tasks/{name}."
    changes: dict[str, Any] = {"steps": _steps(task.steps, prefix)}
    if task.error_handling.cleanup_on_error is not None:
        cleanup = _steps(task.error_handling.cleanup_on_error, f"{prefix}cleanup_on_error.")
        changes["error_handling"] = task.error_handling.model_copy(update={"cleanup_on_error": cleanup})
    return task.model_copy(update=changes)


def _steps(steps: tuple[Step, ...], prefix: str) -> tuple[Step, ...]:
    return tuple(_step(step, f"{prefix}{index}.{step.type}") for index, step in enumerate(steps))


def _step(step: Step, position: str) -> Step:
    changes: dict[str, Any] = {"id": step.id or position}
    for key, children in branches(step).items():
        changes["else_" if key == "else" else key] = _steps(children, f"{changes['id']}.{key}.")
    return step.model_copy(update=changes)
