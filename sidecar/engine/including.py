"""`include_workflow`: another workflow is entered, with a state of its own, and left again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.catalog import workflows
from sidecar.engine import bookkeeping
from sidecar.engine.program.actions import Completed
from sidecar.engine.record.image import included_path
from sidecar.engine.work.durations import positive_s
from sidecar.model import run as kinds
from sidecar.model.parameters import bind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.engine.outcomes import Outcomes
    from sidecar.engine.program.actions import Include, Leave
    from sidecar.engine.threads import Thread
    from sidecar.model.workflow import Workflow


def enter(outcomes: Outcomes, root: str, thread: Thread, action: Include) -> None:
    """Find the workflow, give it its inputs, begin its state."""
    step, key = action.step, thread.step_key()
    scope = thread.scope(action.scope)
    space = outcomes.image.spaces[scope.path]
    with outcomes.attempt(step) as tried:
        given = space.view(scope.names).value(step.inputs)
        definition = workflows.included(root, space.definition, step.workflow)
        inputs, fields = _bound(definition.workflow, given, f"workflow {step.workflow!r}")
        positive_s(space.view(scope.names), step.timeout_s, "timeout")
        included = outcomes.image.include(thread, definition, inputs, fields)
    if tried.error is not None:
        outcomes.failed(thread, step, tried.error)
        return
    # What was found by its name may be another file tomorrow: the run keeps what it began with.
    record = None if step.workflow in space.definition.components else definition.record()
    told = {"step": key, "id": step.id, "type": step.type, "attempt": action.attempt, "task": thread.task_id}
    outcome = ["included", record, inputs, step.workflow, fields]
    outcomes.ledger.note(kinds.STEP_STARTED, thread=thread.key, **told, outcome=outcome)
    thread.cursor = thread.cursor.after(included)


def _bound(workflow: Workflow, given: Mapping[str, Any], subject: str) -> tuple[dict[str, Any], list[str]]:
    """The inputs, and which of them also set a field of that name. A field that is no input can be given, too."""
    fields = [name for name in given if name in workflow.raw_fields]
    undeclared = {name: given[name] for name in fields if name not in workflow.inputs}
    declared = {name: value for name, value in given.items() if name not in undeclared}
    return {**bind(workflow.parameters, declared, subject), **undeclared}, fields


def leave(outcomes: Outcomes, thread: Thread, action: Leave) -> None:
    """The included workflow is done: what it left is the step's result."""
    step, key = action.step, thread.step_key()
    scope = thread.scope(action.scope)
    space = outcomes.image.spaces[scope.path]
    with outcomes.attempt(step) as tried:
        result = outcomes.image.spaces[included_path(thread)].state.flattened()
        update = [step.state_update] if step.state_update else []
        writes = space.view(scope.names).with_names(result=result).writes(update)
        outcomes.write(space, scope.path, [*writes, *bookkeeping.completed(space, step.id)])
    if tried.error is not None:
        outcomes.failed(thread, step, tried.error)
        return
    outcomes.completed(thread, step, key, ["left"])
    outcomes.image.left(thread)
    thread.cursor = thread.cursor.after(Completed())
