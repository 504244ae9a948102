"""The slash command `/workflow` for Claude Code: a prompt that turns its words into calls of the sidecar's tools."""

from __future__ import annotations

import os

from sidecar.agents.adapters.adapter import MCP_SERVER
from sidecar.catalog import naming

# A file with this line is ours, and may be replaced by a newer one.
MARK = "<!-- Made by `sidecar mcp install claude`, which also renews it. -->"
_TOOLS = (
    "workflow_list",
    "workflow_get_info",
    "workflow_start",
    "workflow_get_next_step",
    "workflow_step_complete",
    "workflow_checkpoint",
    "workflow_complete",
    "workflow_resume",
    "workflow_status",
    "workflow_state_read",
    "workflow_state_update",
    "abort",
)
_TEXT = """\
---
description: List, start, resume and look at the workflows of the sidecar
argument-hint: list | NAME info | NAME start [--input key=value ...] | resume ID | status [ID]
allowed-tools: {tools}
---
{mark}

The person typed: /workflow $ARGUMENTS

All tools named here are those of the MCP server `{server}`. Do what the first line says that fits:

- `list`: call `workflow_list`. Show every workflow with its name, its description and where it comes from.
- `NAME info`: call `workflow_get_info` with NAME as `workflow`. Show what it is for, and its inputs with their types,
  which of them are required, and their defaults.
- `NAME start`, with any number of `--input key=value`: execute that workflow, as is said under "Execute" below. The
  inputs are the words behind `--input`, each value as the type that the workflow declares for it.
- `resume ID`: call `workflow_resume` with ID as `workflow_id`, and go on under "Execute" from the call of
  `workflow_get_next_step` on. Where the answer says that the run waits for something, ask the person for it first, and
  give it as `answer` or `feedback`. Only where the person approves what was submitted, give `approve` as true.
- `status ID`: call `workflow_status` with ID as `workflow_id`. Show its status, step and iteration, and why it ended if
  it did. `status` alone: call it without arguments, and show the newest runs.

Where none of these fits, show these five forms, and call nothing.

## Execute

{execute}"""


def text() -> str:
    """The file's whole content. How a workflow is executed is said by the built-in prompt, here as everywhere."""
    with open(os.path.join(naming.builtin_directory("prompts"), "orchestrator.md"), encoding="utf-8") as file:
        body = file.read().split("---\n", 2)[2]
    execute = body.replace("{{ workflow }}", "NAME").replace("{{ inputs }}", "those that the person typed.")
    tools = ", ".join(f"mcp__{MCP_SERVER}__{name}" for name in _TOOLS)
    return _TEXT.format(tools=tools, mark=MARK, server=MCP_SERVER, execute=execute)


def edited(old: str) -> str:
    """What stands in the file then. One that somebody else wrote stays."""
    return text() if not old.strip() or MARK in old else old
