"""What the engine itself writes into a state for workflows that declare it: what is done, what failed, how often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.state.reactive import Write

if TYPE_CHECKING:
    from sidecar.engine.program.actions import Error
    from sidecar.engine.spaces import Space


def completed(space: Space, step_id: str) -> list[Write]:
    """A step is done."""
    if "steps_completed" not in space.kept or step_id in _list(space, "steps_completed"):
        return []
    return [Write(("raw", "steps_completed"), step_id, "append")]


def failed(space: Space, step_id: str, error: Error, *, again: bool) -> list[Write]:
    """A step failed; `again`: it is tried once more."""
    writes: list[Write] = []
    if "last_error" in space.kept:
        writes.append(Write(("raw", "last_error"), error))
    if again:
        if "retry_counts" in space.kept:
            writes.append(Write(("raw", "retry_counts", step_id), 1, "increment"))
        return writes
    if "steps_failed" in space.kept and step_id not in _list(space, "steps_failed"):
        writes.append(Write(("raw", "steps_failed"), step_id, "append"))
    collection = space.definition.workflow.error_handling.error_collection
    if collection is not None and collection.enabled:
        path = space.view({}).path(collection.state_path)
        kept = error if collection.include_stack_traces else _without_place(error)
        writes.append(Write(path, kept, "append"))
    elif "workflow_errors" in space.kept:
        writes.append(Write(("raw", "workflow_errors"), _without_place(error), "append"))
    return writes


def _list(space: Space, name: str) -> list[Any]:
    value = space.state.raw.get(name)
    return value if isinstance(value, list) else []


def _without_place(error: Error) -> Error:
    return {key: value for key, value in error.items() if key not in ("line", "column")}
