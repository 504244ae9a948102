"""What an agent may ask about workflows and states: definitions, computed fields and their cost, past steps."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from sidecar.catalog import workflows
from sidecar.errors import ExpressionError
from sidecar.service.status import iso_timestamp
from sidecar.state.world import World
from sidecar.store.journal import Steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.state.reactive import Reactive
    from sidecar.state.script import Script
    from sidecar.store.db import Database

Json = dict[str, Any]
_WORDS = {"completed": "success", "failed": "failed", "interrupted": "failed", "begun": "running"}
_SLOWEST = 5


def workflow_info(root: str, name: str) -> Json:
    """What a workflow asks for."""
    definition = workflows.find(root, name)
    workflow = definition.workflow
    inputs = {
        one.name: one.model_dump(exclude={"name"}, exclude_unset=True, mode="json") for one in workflow.parameters
    }
    return {
        "name": definition.name,
        "description": workflow.description,
        "inputs": inputs,
        "version": workflow.version,
        "found_at": definition.loaded_from,
    }


def definition(root: str, name: str) -> Json:
    """The whole of it."""
    found = workflows.find(root, name)
    content = found.workflow.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {
        "name": found.name,
        "steps": content.get("steps") or [],
        "state_schema": content.get("state_schema") or {},
        "sub_agent_tasks": content.get("sub_agent_tasks") or {},
        "loaded_from": found.loaded_from,
    }


def dependencies(state: Reactive, field: str) -> Json:
    """What a computed field reads, and who reads it."""
    found = state.dependencies(field)
    return {
        "direct_deps": list(found.direct),
        "all_deps": list(found.transitive),
        "dependents": list(found.dependents),
    }


def traces(found: list[Json], *, timing: bool) -> Json:
    """How computed fields came to their values."""
    return {"traces": [_trace(one, timing=timing) for one in found]}


def history(database: Database, run_id: str) -> list[Json]:
    """Every step of a run, in the order in which they were begun."""
    return [
        {
            "step_id": step.key,
            "started_at": iso_timestamp(step.began_at),
            "completed_at": iso_timestamp(step.ended_at) if step.ended_at else None,
            "status": _WORDS[step.status],
        }
        for step in Steps(database).steps(run_id)
    ]


def effort(state: Reactive, found: list[Json], total: int) -> Json:
    """How large a state is, and what its computed fields cost, by the last of `total` computations."""
    times: dict[str, list[float]] = {}
    for one in found:
        times.setdefault(one["field"], []).append(one["duration_ms"])
    averages = {name: sum(spent) / len(spent) for name, spent in times.items()}
    slowest = sorted(averages.items(), key=lambda entry: -entry[1])[:_SLOWEST]
    every = [spent for some in times.values() for spent in some]
    return {
        "state_size": {
            "raw_bytes": _bytes(state.raw),
            "computed_bytes": _bytes(state.computed),
            "total_transformations": total,
        },
        "performance": {
            "avg_transformation_time": sum(every) / len(every) if every else 0.0,
            "slowest_transformations": [{"field": name, "avg_ms": spent} for name, spent in slowest],
        },
    }


def tried(script: Script, transform: str, given: Any, context: Mapping[str, Any]) -> Json:
    """A transformation, tried out on an input."""
    begun = time.perf_counter()
    world = World(script)
    try:
        for name, value in context.items():
            world.set(name, value)
        output = world.run(script.compile(transform), {"input": given})
        answer: Json = {"success": True, "output": output}
    except ExpressionError as error:
        answer = {"success": False, "error": str(error)}
    finally:
        world.close()
    return {**answer, "execution_time_ms": (time.perf_counter() - begun) * 1000}


def _trace(one: Json, *, timing: bool) -> Json:
    told = {"field": one["field"], "timestamp": iso_timestamp(one["at"])}
    if one["space"]:  # of an included workflow: the steps that include it
        told["included_by"] = one["space"]
    left_out = {"space", "at"} if timing else {"space", "at", "duration_ms"}
    return {**told, **{key: value for key, value in one.items() if key not in left_out}}


def _bytes(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
