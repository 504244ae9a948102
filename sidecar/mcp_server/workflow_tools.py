"""The tools by which an outside agent drives a run itself, looks at its state, and finds out what went wrong."""

from __future__ import annotations

from typing import Any

from sidecar.mcp_server import listing
from sidecar.mcp_server.port import Json
from sidecar.mcp_server.schemas import (
    BOOLEAN,
    NUMBER,
    OBJECT,
    OBJECTS,
    RUN_ID,
    STATUSES,
    STRING,
    STRINGS,
    anything,
    flag,
    gives,
    many,
    or_null,
    record,
    takes,
    text,
)
from sidecar.mcp_server.tool import Site, Tool
from sidecar.service.owners import in_thread

_WORKFLOW = text("Name of the workflow, such as standards:fix.", blank=False)
_TASK = text("Id of the task, for a sub-agent of a parallel step.")
_CONTEXT = record("What a sub-agent was given; its task_id counts as task_id.")
_UPDATE = takes(
    {"path": text("Begins with raw. or state.")},
    {
        "value": anything("Required, but for increment, which without it adds 1."),
        "operation": text(choices=["set", "append", "increment", "merge"]),
    },
)
_INPUTS = record("Values of the workflow's inputs.")


async def _next_step(site: Site, given: dict[str, Any]) -> Json:
    context = given.get("sub_agent_context")
    return await site.service.next_step(given["workflow_id"], _task(given), context)


async def _step_complete(site: Site, given: dict[str, Any]) -> Json:
    return await site.service.step_complete(
        given["workflow_id"],
        given["step_id"],
        given.get("status", "success"),
        given.get("result"),
        given.get("error"),
        _task(given),
        given.get("attempt"),
    )


async def _resume(site: Site, given: dict[str, Any]) -> Json:
    return await site.service.resume(
        given["workflow_id"],
        given.get("feedback"),
        given.get("answer"),
        given.get("driver"),
        approve=given.get("approve", False),
        asker=site.run_id,
    )


async def _list(site: Site, given: dict[str, Any]) -> Json:
    return await in_thread(listing.workflow_list, site.root, include_global=given.get("include_global", True))


def _task(given: dict[str, Any]) -> str | None:
    """The task's id, wherever the caller put it."""
    inside = given.get("sub_agent_context", {}).get("task_id")
    task_id = given.get("task_id", inside)
    return task_id if isinstance(task_id, str) else None


DRIVING = (
    Tool(
        "workflow_get_info",
        "Describe a workflow: its inputs, version and file.",
        takes({"workflow": _WORKFLOW}),
        gives({"name": STRING, "inputs": OBJECT}, {"description": STRING, "version": STRING, "found_at": STRING}),
        "reads",
        lambda site, given: site.service.workflow_info(given["workflow"]),
    ),
    Tool(
        "workflow_start",
        "Start a workflow that you will carry out step by step with workflow_get_next_step. "
        "To have the sidecar carry it out, call flow.",
        takes({"workflow": _WORKFLOW}, {"inputs": _INPUTS, "workspace": text("Workspace to bind the run to.")}),
        gives({"workflow_id": STRING, "state": OBJECT}),
        "changes",
        lambda site, given: site.service.start(given["workflow"], given.get("inputs", {}), given.get("workspace")),
    ),
    Tool(
        "workflow_get_next_step",
        "The next atomic step to do. Until it is completed, the same step comes again. At the end, step is null.",
        takes({"workflow_id": RUN_ID}, {"task_id": _TASK, "sub_agent_context": _CONTEXT}),
        gives({"step": or_null(OBJECT)}, {"status": STRING, "reason": or_null(STRING)}),
        "repeatable",
        _next_step,
    ),
    Tool(
        "workflow_step_complete",
        "Say that a step is done, with its result. The step's own state_update is applied. Twice is harmless.",
        takes(
            {"workflow_id": RUN_ID, "step_id": text("Id from workflow_get_next_step.", blank=False)},
            {
                "status": text(choices=["success", "failed"]),
                "result": anything("What the step produced."),
                "error": text("What went wrong, with status failed."),
                "attempt": {"type": "integer", "description": "The step's attempt, as it was handed out."},
                "task_id": _TASK,
                "sub_agent_context": _CONTEXT,
            },
        ),
        gives({"success": BOOLEAN}),
        "repeatable",
        _step_complete,
    ),
    Tool(
        "workflow_resume",
        "Go on with a run that was stopped, paused, failed, aborted or interrupted, from its last boundary. "
        "You drive it from then on, unless driver is server or it was paused.",
        takes(
            {"workflow_id": RUN_ID},
            {
                "feedback": text("What a person says, for the next prompt. Alone, it sends what was submitted back."),
                "answer": anything("The answer to the question that the run waits for."),
                "approve": flag("A person approves what was submitted; not for the agent that did."),
                "driver": text("Who does its steps from now on: you, or the sidecar.", choices=["agent", "server"]),
            },
        ),
        gives({"workflow_id": STRING}, {"state": OBJECT, "last_checkpoint": or_null(OBJECT)}),
        "changes",
        _resume,
    ),
    Tool(
        "workflow_load_definition",
        "A workflow's whole definition, as it was read.",
        takes({"workflow": _WORKFLOW}),
        gives({"name": STRING, "steps": OBJECTS}, {"state_schema": OBJECT, "loaded_from": STRING}),
        "reads",
        lambda site, given: site.service.load_definition(given["workflow"]),
    ),
    Tool(
        "workflow_checkpoint",
        "Save where a run stands, for instance before your context is full.",
        takes({"workflow_id": RUN_ID}, {"step_id": STRING, "reason": STRING}),
        gives({"checkpoint_id": STRING}, {"state_path": STRING}),
        "repeatable",
        lambda site, given: site.service.checkpoint(given["workflow_id"], given.get("step_id"), given.get("reason")),
    ),
    Tool(
        "workflow_complete",
        "End a run that you carried out; gives its final state.",
        takes({"workflow_id": RUN_ID}, {"status": text(choices=["success", "failed", "cancelled"])}),
        gives({"success": BOOLEAN}, {"final_state": OBJECT}),
        "repeatable",
        lambda site, given: site.service.complete(given["workflow_id"], given.get("status", "success")),
    ),
    Tool(
        "workflow_list",
        "The workflows there are.",
        takes(None, {"include_global": {"type": "boolean", "default": True}}),
        gives({"workflows": OBJECTS}, {"problems": STRINGS}),
        "reads",
        _list,
    ),
    Tool(
        "workflow_status",
        "How runs stand, newest first; of one run, with workflow_id.",
        takes(None, {"workflow_id": RUN_ID}),
        gives(
            {"runs": many(gives({"run_id": STRING, "status": text(choices=STATUSES)}, {"workflow": STRING}))},
        ),
        "reads",
        lambda site, given: site.service.status(given.get("workflow_id")),
    ),
)
STATE = (
    Tool(
        "workflow_state_read",
        "A run's state, flattened; only some paths, with paths.",
        takes({"workflow_id": RUN_ID}, {"paths": many(STRING)}),
        OBJECT,
        "reads",
        lambda site, given: site.service.state_read(given["workflow_id"], given.get("paths")),
    ),
    Tool(
        "workflow_state_update",
        "Change a run's state in one transaction: all updates or none. Gives the computed fields that changed.",
        takes({"workflow_id": RUN_ID, "updates": many(_UPDATE, empty=False)}),
        gives({"success": BOOLEAN}),
        "changes",
        lambda site, given: site.service.state_update(given["workflow_id"], given["updates"]),
    ),
    Tool(
        "workflow_state_dependencies",
        "What a computed field depends on, and what depends on it.",
        takes({"workflow_id": RUN_ID, "field": STRING}),
        gives({"direct_deps": STRINGS, "all_deps": STRINGS, "dependents": STRINGS}),
        "reads",
        lambda site, given: site.service.state_dependencies(given["workflow_id"], given["field"]),
    ),
)
DEBUGGING = (
    Tool(
        "workflow_trace_transformations",
        "How a run's computed fields were computed.",
        takes({"workflow_id": RUN_ID}, {"field": STRING, "include_timing": flag("With durations.")}),
        gives({"traces": OBJECTS}),
        "reads",
        lambda site, given: site.service.trace(
            given["workflow_id"], given.get("field"), given.get("include_timing", False)
        ),
    ),
    Tool(
        "workflow_debug_info",
        "Where a run stands, its steps so far, the size of its state, and what is slow.",
        takes({"workflow_id": RUN_ID}),
        gives({"current_step": or_null(STRING), "step_history": OBJECTS}),
        "reads",
        lambda site, given: site.service.debug_info(given["workflow_id"]),
    ),
    Tool(
        "workflow_test_transformation",
        "Try a JavaScript transformation on an input, without any effect.",
        takes(
            {"transform": text("The JavaScript.", blank=False), "input": anything("What `input` is.")},
            {"context": record("More names.")},
        ),
        gives({"success": BOOLEAN}, {"output": anything(""), "error": STRING, "execution_time_ms": NUMBER}),
        "reads",
        lambda site, given: site.service.test_transformation(given["transform"], given["input"], given.get("context")),
    ),
    Tool(
        "workflow_explain_plan",
        "What a workflow would do with these inputs, without running it.",
        takes({"workflow": _WORKFLOW}, {"inputs": _INPUTS}),
        gives({"steps": OBJECTS}, {"required_tools": STRINGS}),
        "reads",
        lambda site, given: site.service.explain_plan(given["workflow"], given.get("inputs", {})),
    ),
)
