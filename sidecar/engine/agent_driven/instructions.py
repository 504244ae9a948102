"""What an outside agent is told to do with a step, and how to report it.

These are sidecar's own words. A value that came from a file, a command or another agent stands in `definition` only,
where it is data: here it would be read as an order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FORMATS = {
    "text": "{}, as one text",
    "lines": "{}, as a list of its lines",
    "json": "{}, as the JSON value that it is",
    "key_value": "{}, as an object of its keys and values",
}
_ANSWERS = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}


@dataclass(frozen=True, slots=True)
class Reporting:
    """By which ids a step is reported."""

    workflow_id: str
    step_id: str
    attempt: int
    task_id: str | None

    @property
    def shown(self) -> str:
        """The arguments that every report of the step has."""
        ids = {
            "workflow_id": self.workflow_id,
            "step_id": self.step_id,
            "attempt": self.attempt,
            "task_id": self.task_id,
        }
        return ", ".join(f"{name} {json.dumps(value)}" for name, value in ids.items() if value is not None)


def instructions(kind: str, definition: Mapping[str, Any], reporting: Reporting) -> str:
    """What to do, then how to report it."""
    lines, result = _BY_KIND[kind](definition)
    return "\n".join([*lines, *_circumstances(definition), *_report(definition, result, reporting)])


def _circumstances(definition: Mapping[str, Any]) -> list[str]:
    lines = []
    if "working_dir" in definition:
        lines.append("Do it in the directory `definition.working_dir`, which is relative to the project's root.")
    if "env" in definition:
        lines.append("Have the variables of `definition.env` in its environment.")
    if "timeout_s" in definition:
        lines.append(f"It may take {definition['timeout_s']:g} seconds; if it takes longer, it has failed.")
    if "notes" in definition:
        lines.append("Heed `definition.notes`: a person said that meanwhile.")
    return lines


def _report(definition: Mapping[str, Any], result: str | None, reporting: Reporting) -> list[str]:
    ids = reporting.shown
    done = f"When it is done, call workflow_step_complete with {ids}"
    lines = [f"{done}." if result is None else f"{done} and result: {result}."]
    if "state_update" in definition:
        lines.append("The sidecar does the `definition.state_update` with that result; do not write it yourself.")
    lines.append(f'If it cannot be done, call workflow_step_complete with {ids}, status "failed" and error: why.')
    return lines


def _for_whom(definition: Mapping[str, Any]) -> list[str]:
    named = "It is meant for the agent `definition.agent`: have that one do it if you can, else do it yourself."
    return [named] if "agent" in definition else []


def _agent(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = ["Do what `definition.prompt` says."]
    lines += _for_whom(definition)
    if "parameters" in definition:
        lines.append("`definition.parameters` belong to the prompt.")
    return lines, _FORMATS[definition["output_format"]].format("the answer that the prompt asks for")


def _apply_hints(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = [
        "Apply the hints in `definition.hints` to the file `definition.file`, and change nothing else.",
        "Leave out those that do not fit it. Count those that you applied.",
    ]
    return lines + _for_whom(definition), 'that count, as {"applied_count": 3}'


def _agent_shell_command(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = [
        "Run `definition.command` with a shell, exactly as it stands: the values in it are quoted already.",
        "If its exit code is not 0, it has failed: say the code and the end of its output.",
    ]
    if "reason" in definition:
        lines.insert(1, "`definition.reason` says why you are asked to.")
    return lines, _FORMATS[definition["output_format"]].format("the command's standard output")


def _mcp_call(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    server = " of the MCP server `definition.server`" if "server" in definition else ""
    lines = [f"Call the MCP tool `definition.method`{server} with `definition.params` as its arguments, unchanged."]
    return lines, "what the tool returned: its structured content if it has any, else its text"


def _user_input(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = ["Ask the user `definition.prompt`, and wait for the answer. Do not answer in the user's place."]
    if "choices" in definition:
        lines.append("Only one of `definition.choices` is an answer.")
    if "validation" in definition:
        lines.append("An answer matches the regular expression (JavaScript's) `definition.validation.pattern`.")
        lines.append("If it does not, say `definition.validation.error_message` and ask again.")
    if "default" in definition:
        lines.append("Where the user just agrees, the answer is `definition.default`.")
    return lines, f"the answer, as {_ANSWERS[definition['type']]}"


def _user_message(_: Mapping[str, Any]) -> tuple[list[str], None]:
    return ["Show the user `definition.message`, as it stands."], None


def _parallel_tasks(definition: Mapping[str, Any]) -> tuple[list[str], None]:
    shared = "sub_agent_prompt" in definition
    prompt = "`definition.sub_agent_prompt` as its prompt" if shared else "the entry's `prompt` as its prompt"
    lines = [
        f"Start a sub-agent for EACH entry of `definition.tasks`, at most {definition['max_parallel']} at a time.",
        f"Give it {prompt}, with the entry's `task_id` and the whole `context`: it asks for its own steps with them.",
    ]
    if "agent" in definition:
        lines.append("The sub-agents are meant to be `definition.agent`, if you can have that one.")
    if definition["wait_for_all"]:
        lines.append("It is done when ALL the sub-agents have ended. Do not do their steps yourself.")
    else:
        lines.append(
            "It is done when the FIRST of them has ended; let the others go on, and start those that are left."
        )
    lines.append("The sidecar knows which tasks are done and which have failed; you need not report them.")
    return lines, None


_BY_KIND: dict[str, Callable[[Mapping[str, Any]], tuple[list[str], str | None]]] = {
    "agent": _agent,
    "apply_hints": _apply_hints,
    "agent_shell_command": _agent_shell_command,
    "mcp_call": _mcp_call,
    "user_input": _user_input,
    "user_message": _user_message,
    "parallel_tasks": _parallel_tasks,
}
