"""Lists of steps that a cursor can walk, and the way to a step in them by its id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.errors import DefinitionChanged
from sidecar.model.steps_control import Conditional, Loop

if TYPE_CHECKING:
    from sidecar.model.steps_control import Step, Steps
    from sidecar.model.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Part:
    """Steps with what holds for all of them.

    `stoppable`: a stop is taken between them; not so in the tasks of `parallel_foreach`, which finish. `goes_on`:
    an error that no step takes care of costs that step only (`error_handling: {on_error: continue}`).
    """

    steps: Steps
    stoppable: bool = False
    goes_on: bool = False


def of_workflow(workflow: Workflow) -> Part:
    """The steps of a workflow, as a run or an `include_workflow` walks them."""
    return Part(workflow.steps or (), stoppable=True, goes_on=workflow.error_handling.on_error == "continue")


def inner(step: Step, branch: str) -> Steps | None:
    """The steps of a branch (`then`, `else`, `body`), None where the step has no such branch."""
    if isinstance(step, Loop):
        return step.inner if branch == "body" else None
    if isinstance(step, Conditional):
        return {"then": step.then, "else": step.else_ or ()}.get(branch)
    return None


def find(steps: Steps, step_id: str) -> int:
    """Where a step stands in a list."""
    for place, step in enumerate(steps):
        if step.id == step_id:
            return place
    raise gone(step_id)


def gone(step_id: str) -> DefinitionChanged:
    """The error for a step that is not where the run left it."""
    return DefinitionChanged(
        f"step {step_id!r}, where the run stands, is not in the same place of the definition any more: "
        "resume with the definition that the run was started with, or start a new run"
    )
