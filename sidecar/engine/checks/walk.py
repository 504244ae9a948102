"""Every list of steps in a workflow, with its place in the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.model.steps_control import Loop, branches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.model.steps_control import Step
    from sidecar.model.workflow import Workflow

Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class StepList:
    """Steps that follow each other. `location` is without a wrapper; `in_loop`: break and continue have a target."""

    steps: tuple[Step, ...]
    location: Location
    in_loop: bool = False


def step_lists(workflow: Workflow) -> Iterator[StepList]:
    """All of them: the workflow's own, those of its tasks, those for errors, and those inside other steps."""
    tops = [StepList(workflow.steps or (), ("steps",))]
    for name, task in (workflow.sub_agent_tasks or {}).items():
        where = ("sub_agent_tasks", name)
        tops.append(StepList(task.steps, (*where, "steps")))
        tops.append(
            StepList(task.error_handling.cleanup_on_error or (), (*where, "error_handling", "cleanup_on_error"))
        )
    tops.append(StepList(workflow.error_handling.on_failure or (), ("error_handling", "on_failure")))
    for top in tops:
        yield from _with_inner(top)


def steps(workflow: Workflow) -> Iterator[tuple[Step, Location]]:
    """Every step with its place."""
    for each in step_lists(workflow):
        for index, step in enumerate(each.steps):
            yield step, (*each.location, index)


def _with_inner(outer: StepList) -> Iterator[StepList]:
    yield outer
    for index, step in enumerate(outer.steps):
        for key, children in branches(step).items():
            inner = StepList(children, (*outer.location, index, key), outer.in_loop or isinstance(step, Loop))
            yield from _with_inner(inner)
