"""Steps that nothing leads to, and jumps that lead nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.checks import walk
from sidecar.model.steps import Exit
from sidecar.model.steps_control import Break, Conditional, Continue

if TYPE_CHECKING:
    from sidecar.engine.findings import Notes
    from sidecar.model.steps_control import Step
    from sidecar.model.workflow import Workflow


def check(workflow: Workflow, notes: Notes) -> None:
    """Note every `break` outside of a loop, the first step of each list that is never reached, and a workflow that
    does nothing."""
    if workflow.steps == ():
        message = "`steps` is empty: there is nothing to do (a file of `sub_agent_tasks` for others leaves it out)"
        notes.error(("steps",), message)
    for each in walk.step_lists(workflow):
        for index, step in enumerate(each.steps):
            if isinstance(step, Break | Continue) and not each.in_loop:
                notes.error((*each.location, index), f"`{step.type}` stands outside of every loop")
        last = next((index for index, step in enumerate(each.steps) if _ends(step)), None)
        if last is not None and last + 1 < len(each.steps):
            why = _why(each.steps[last])
            notes.error((*each.location, last + 1), f"this step is never reached: {why}")


def _ends(step: Step) -> bool:
    """Whether nothing after the step, in the same list, ever runs."""
    if isinstance(step, Conditional):
        return any(map(_ends, step.then)) and any(map(_ends, step.else_ or ()))
    return isinstance(step, Exit | Break | Continue)


def _why(step: Step) -> str:
    if isinstance(step, Conditional):
        return "both ways through the `conditional` before it lead elsewhere"
    return f"the step before it is `{step.type}`"
