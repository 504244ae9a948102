"""The tools that start runs, and those that end, pause or call them back."""

from __future__ import annotations

from typing import Any

from sidecar.mcp_server.port import Json
from sidecar.mcp_server.schemas import (
    BOOLEAN,
    OBJECT,
    OBJECTS,
    STATUSES,
    STRING,
    STRINGS,
    Schema,
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

FORMATS = ["json", "yaml", "table"]
_RUN_ID = text("The run (a workflow_id); without it, the run that asks, else see the description.", blank=False)
_WORKSPACE = text("Name of a workspace.", blank=False)
_SIGNALLED = gives({"success": BOOLEAN}, {"path": STRING, "signal_id": STRING, "message": STRING})


def _starts(noun: str) -> Schema:
    return takes(
        {f"{noun}_name": text(f"Which {noun}; 'list' lists them.")},
        {
            "parameters": record("Its parameters."),
            "format": {**text("Of the list.", choices=FORMATS), "default": "json"},
            "verbose": flag("List with more detail."),
            "interactive": flag("Ask the person here when the run has a question."),
            "dry_run": flag("Give the plan, run nothing."),
            "quiet": flag("No progress."),
            "workspace": _WORKSPACE,
            "detach": flag("Return once it is started; workflow_status finds it."),
        },
    )


def _run(listed: str) -> Schema:
    """The list, the plan, or the run: none of their keys is in all of them."""
    return gives(
        None,
        {
            listed: OBJECTS,
            "problems": STRINGS,
            "run_id": STRING,
            "status": text(choices=STATUSES),
            "reason": or_null(STRING),
            "state": OBJECT,
            "messages": many(anything("")),
        },
    )


async def _abort(site: Site, given: dict[str, Any]) -> Json:
    return await site.service.abort(given["reason"], given.get("run_id"), given.get("workspace"), asker=site.run_id)


async def _stop(site: Site, given: dict[str, Any]) -> Json:
    return await site.service.stop(
        given.get("workspace"),
        given.get("run_id"),
        given.get("reason"),
        given.get("cancel", False),
        asker=site.run_id,
    )


async def _stage_gate(site: Site, given: dict[str, Any]) -> Json:
    return await site.service.stage_gate(
        given["stage"], given["output"], given.get("kind", "stage"), given.get("run_id") or site.run_id
    )


SIGNALS = (
    Tool(
        "abort",
        "End work now: every agent and command of the run that asks, of a run, a workspace, else of the whole "
        "project: give run_id for a run that you drive. Use it when going on would do harm or cannot succeed.",
        takes(
            {"reason": text("Why; people read it.", blank=False)},
            {"run_id": _RUN_ID, "workspace": _WORKSPACE},
        ),
        _SIGNALLED,
        "ends",
        _abort,
    ),
    Tool(
        "stop",
        "Let the current iteration finish, then end the run; it can be resumed. "
        "Of the run that asks, a run, a workspace, else of the whole project: give run_id for a run that you drive.",
        takes(
            None,
            {
                "workspace": _WORKSPACE,
                "run_id": _RUN_ID,
                "reason": text("Why."),
                "cancel": flag("Take an earlier stop back."),
            },
        ),
        _SIGNALLED,
        "repeatable",
        _stop,
    ),
    Tool(
        "stage_gate",
        "Submit a stage's output or a plan for approval. The run pauses: end your turn after this call.",
        takes(
            {"stage": text("Name of the stage.", blank=False), "output": text("What a person has to see.")},
            {"kind": text(choices=["stage", "plan"]), "run_id": _RUN_ID},
        ),
        gives({"allowed": BOOLEAN, "pause_required": BOOLEAN}),
        "changes",
        _stage_gate,
    ),
)
RUNS = (
    Tool(
        "flow",
        "Run a workflow to its end, or list the workflows with flow_name 'list'.",
        _starts("flow"),
        _run("workflows"),
        runs="flow",
    ),
    Tool(
        "agent",
        "Run a coding agent, supervised, or list the agents with agent_name 'list'.",
        _starts("agent"),
        _run("agents"),
        runs="agent",
    ),
    Tool(
        "prompt",
        "Give a stored prompt to the default agent, or list the prompts with prompt_name 'list'.",
        _starts("prompt"),
        _run("prompts"),
        runs="prompt",
    ),
)
