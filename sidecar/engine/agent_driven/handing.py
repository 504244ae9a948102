"""Steps as an outside agent receives them: atomic, with every template filled in, and with what to do about them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.engine.agent_driven.filling import Filling
from sidecar.engine.agent_driven.instructions import Reporting, instructions
from sidecar.engine.evaluation import View
from sidecar.model.language import has_template
from sidecar.model.steps import (
    AgentShellCommand,
    AgentStep,
    ApplyHints,
    McpCall,
    RunsSomewhere,
    StepBase,
    UserInput,
    UserMessage,
    Working,
)
from sidecar.state.javascript import split_template

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sidecar.model.steps_control import ParallelForEach
    from sidecar.model.updates import Update

    NamedPrompt = Callable[[str, dict[str, Any]], str]

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_Definition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that is being made ready, with what its definition alone does not say."""

    fill: Filling
    named_prompt: NamedPrompt


def hand_out(
    step: StepBase,
    view: View,
    *,
    key: str,
    workflow_id: str,
    named_prompt: NamedPrompt,
    attempt: int = 1,
    task_id: str | None = None,
    additions: Sequence[str] = (),
) -> dict[str, Any]:
    """The step as JSON. `named_prompt` renders a prompt by name; `additions` are what was said to the step since.

    A `parallel_foreach` is for `hand_out_tasks`; TypeError where the step is none that an agent can be given.
    """
    define = _DEFINITIONS.get(type(step))
    if define is None:
        raise TypeError(f"a {getattr(step, 'type', 'step')} is not handed out")
    fill = Filling(view)
    kind: str = step.type  # type: ignore[attr-defined]
    definition = _added(kind, define(step, _Step(fill, named_prompt)), additions)
    if step.description:
        definition["description"] = step.description
    if isinstance(step, Working):
        definition |= _circumstances(step, fill)
    return _atomic(kind, definition, fill.replacements, fill.lone, Reporting(workflow_id, key, attempt, task_id))


def hand_out_tasks(
    step: ParallelForEach,
    view: View,
    *,
    key: str,
    workflow_id: str,
    tasks: Mapping[str, Mapping[str, Any]],
    max_parallel: int,
    sub_agent_prompt: str,
    description: str = "",
    attempt: int = 1,
    task_id: str | None = None,
    additions: Sequence[str] = (),
) -> dict[str, Any]:
    """All tasks of a `parallel_foreach` that are still to be done, as one step.

    `tasks` are the names in the scope of each (`item`, `index`, its inputs), by its id: as the tasks themselves have
    them, since to evaluate them again could give others. `description` is the task's own. `sub_agent_prompt` is
    the standard one, which an override of the step replaces; one that reads those names, `task_id` or `workflow_id`
    becomes a prompt for each task.
    """
    listed: list[dict[str, Any]] = []
    for own, names in tasks.items():
        listed.append({"task_id": own, "context": {**names, "workflow_id": workflow_id, "task_id": own}})
    fill = Filling(_with(view, {"description": description}))
    definition: _Definition = {"tasks": listed, "max_parallel": max_parallel, "wait_for_all": step.wait_for_all}
    override = step.sub_agent_prompt_override
    if override is None:
        definition["sub_agent_prompt"] = sub_agent_prompt
    elif any(_mentions(view, override, entry["context"]) for entry in listed):
        for entry in listed:
            entry["prompt"] = _with(fill.view, entry["context"]).text(override)
    else:
        definition["sub_agent_prompt"] = fill.text(override)
    definition |= _named("agent", step.agent, fill)
    if step.description or description:
        definition["description"] = step.description or description
    definition = _added("parallel_tasks", definition, additions)
    # What `items` came to stands in the contexts, item by item; a second time would only cost the agent.
    lone = _lone_source(step.items) if isinstance(step.items, str) else []
    return _atomic("parallel_tasks", definition, fill.replacements, lone, Reporting(workflow_id, key, attempt, task_id))


def with_additions(
    step: Mapping[str, Any], additions: Sequence[str], *, workflow_id: str, task_id: str | None
) -> dict[str, Any]:
    """A step that was handed out, with what was said to it since."""
    definition = _added(step["type"], step["definition"], additions)
    reporting = Reporting(workflow_id, step["id"], step["attempt"], task_id)
    changed = {"definition": definition, "instructions": instructions(step["type"], definition, reporting)}
    cleaned: dict[str, Any] = _sendable({**step, **changed})
    return cleaned


def _added(kind: str, definition: _Definition, additions: Sequence[str]) -> _Definition:
    """What was said to a step stands behind all that its author wrote: in a prompt, or as notes."""
    if not additions:
        return definition
    if kind == "agent":
        return {**definition, "prompt": "\n\n".join([definition["prompt"].rstrip("\n"), *additions])}
    return {**definition, "notes": [*definition.get("notes", ()), *additions]}


def _atomic(
    kind: str, definition: _Definition, replacements: dict[str, Any], lone: list[str], reporting: Reporting
) -> dict[str, Any]:
    step = {
        "id": reporting.step_id,
        "attempt": reporting.attempt,
        "type": kind,
        "instructions": instructions(kind, definition, reporting),
        "definition": definition,
    }
    if replacements:
        step["variable_replacements"] = replacements
    if lone:
        step["original_expression"] = "; ".join(dict.fromkeys(lone))
    cleaned: dict[str, Any] = _sendable(step)
    return cleaned


def _agent(step: AgentStep, ready: _Step) -> _Definition:
    fill = ready.fill
    definition: _Definition = {}
    parameters = fill.value(step.parameters)
    if step.prompt_name is not None:
        definition["prompt_name"] = step.prompt_name
        prompt = ready.named_prompt(step.prompt_name, parameters)
    else:
        prompt = fill.text(step.prompt or "")
        if parameters:
            definition["parameters"] = parameters
    definition["prompt"] = prompt
    return definition | _named("agent", step.agent, fill)


def _apply_hints(step: ApplyHints, ready: _Step) -> _Definition:
    fill = ready.fill
    definition = {"file": fill.text(step.file), "hints": fill.value(step.hints)}
    return definition | _named("agent", step.agent, fill)


def _agent_shell_command(step: AgentShellCommand, ready: _Step) -> _Definition:
    definition: _Definition = {"command": ready.fill.command(step.command)}
    if step.reason:
        definition["reason"] = ready.fill.text(step.reason)
    return definition


def _mcp_call(step: McpCall, ready: _Step) -> _Definition:
    fill = ready.fill
    definition: _Definition = {"method": fill.text(step.mcp.method), "params": fill.value(step.mcp.params)}
    return definition | _named("server", step.mcp.server, fill)


def _user_input(step: UserInput, ready: _Step) -> _Definition:
    fill = ready.fill
    definition: _Definition = {"prompt": fill.text(step.prompt), "type": step.answer_type}
    if step.validation is not None:
        message = fill.text(step.validation.error_message)
        definition["validation"] = {"pattern": step.validation.pattern, "error_message": message}
    if step.choices is not None:
        definition["choices"] = fill.value(step.choices)
    if step.default is not None:
        definition["default"] = fill.value(step.default)
    return definition


def _user_message(step: UserMessage, ready: _Step) -> _Definition:
    return {"message": ready.fill.text(step.message)}


_DEFINITIONS: dict[type[StepBase], Callable[[Any, _Step], _Definition]] = {
    AgentStep: _agent,
    ApplyHints: _apply_hints,
    AgentShellCommand: _agent_shell_command,
    McpCall: _mcp_call,
    UserInput: _user_input,
    UserMessage: _user_message,
}


def _named(key: str, name: str | None, fill: Filling) -> _Definition:
    """The name of somebody, where a template yields one: nothing means whoever is the default."""
    found = "" if name is None else fill.text(name)
    return {key: found} if found else {}


def _circumstances(step: Working, fill: Filling) -> _Definition:
    """What steps of several types have alike."""
    found: _Definition = {}
    if isinstance(step, RunsSomewhere):
        found["output_format"] = step.output_format
        if step.working_dir is not None:
            found["working_dir"] = fill.text(step.working_dir)
        if step.env:
            found["env"] = {name: fill.text(value) for name, value in step.env.items()}
    timeout_s = fill.seconds(step.timeout_s, "timeout")
    if timeout_s is not None:
        found["timeout_s"] = timeout_s
    if step.state_update is not None:
        found["state_update"] = _update(step.state_update, fill)
    return found


def _update(update: Update, fill: Filling) -> _Definition:
    """A write that is still to come. Its value stays as it is written: only the result, and the state as it will be
    then, say what it comes to."""
    shown: _Definition = {"path": fill.path(update.path)}
    if update.operation != "set":
        shown["operation"] = update.operation
    if update.has_value:
        shown["value"] = update.value
    else:
        shown["value"] = 1 if update.operation == "increment" else "{{ result }}"
    return shown


def _with(view: View, names: Mapping[str, Any]) -> View:
    # Not `with_names`: a task may call an input `self`.
    return View(view.texts, view.world, {**view.names, **names})


def _mentions(view: View, text: str, names: Mapping[str, Any]) -> bool:
    return has_template(text) and not view.texts.value(text).names.isdisjoint(names)


def _lone_source(text: str) -> list[str]:
    standing = [part for part in split_template(text) if not isinstance(part, str) or part.strip()]
    return [part.source for part in standing if not isinstance(part, str)] if len(standing) == 1 else []


def _sendable(value: Any) -> Any:
    """Only what JSON and UTF-8 can carry: as JavaScript's own JSON does it, a number that is none becomes null."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value
