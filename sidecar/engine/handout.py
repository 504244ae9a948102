"""Steps as an outside agent receives them: atomic, with every template filled in, and with what to do about them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.engine.evaluation import View
from sidecar.engine.steps import output, user_input
from sidecar.errors import ExpressionError, InputError, StepFailed
from sidecar.model import duration
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
from sidecar.state import paths
from sidecar.state.javascript import split_template
from sidecar.state.template import Slot, as_text, filtered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sidecar.model.steps import ParallelForEach, Update

    NamedPrompt = Callable[[str, dict[str, Any]], str]
    from collections.abc import Callable

    from sidecar.engine.evaluation import View
    from sidecar.model.steps import OutputFormat, StepBase
    from sidecar.state.script import Expression


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
        definition |= _circumstances_definition(step, fill)
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


def _agent_definition(step: AgentStep, ready: _Step) -> _Definition:
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


def _apply_hints_definition(step: ApplyHints, ready: _Step) -> _Definition:
    fill = ready.fill
    definition = {"file": fill.text(step.file), "hints": fill.value(step.hints)}
    return definition | _named("agent", step.agent, fill)


def _agent_shell_command_definition(step: AgentShellCommand, ready: _Step) -> _Definition:
    definition: _Definition = {"command": ready.fill.command(step.command)}
    if step.reason:
        definition["reason"] = ready.fill.text(step.reason)
    return definition


def _mcp_call_definition(step: McpCall, ready: _Step) -> _Definition:
    fill = ready.fill
    definition: _Definition = {"method": fill.text(step.mcp.method), "params": fill.value(step.mcp.params)}
    return definition | _named("server", step.mcp.server, fill)


def _user_input_definition(step: UserInput, ready: _Step) -> _Definition:
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


def _user_message_definition(step: UserMessage, ready: _Step) -> _Definition:
    return {"message": ready.fill.text(step.message)}


_DEFINITIONS: dict[type[StepBase], Callable[[Any, _Step], _Definition]] = {
    AgentStep: _agent_definition,
    ApplyHints: _apply_hints_definition,
    AgentShellCommand: _agent_shell_command_definition,
    McpCall: _mcp_call_definition,
    UserInput: _user_input_definition,
    UserMessage: _user_message_definition,
}


def _named(key: str, name: str | None, fill: Filling) -> _Definition:
    """The name of somebody, where a template yields one: nothing means whoever is the default."""
    found = "" if name is None else fill.text(name)
    return {key: found} if found else {}


def _circumstances_definition(step: Working, fill: Filling) -> _Definition:
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


# Templates filled in for somebody who wants to see what they came to: each `{{ }}` is kept beside its value.


LARGEST_VALUE_BYTES = 64 * 1024
_BEGINNING = 1000  # characters that are left of a larger one
# Known only once the step is done.
_LATER = frozenset({"result", "applied_count", "error"})


class Filling:
    """The texts of one step. Each expression is evaluated once: a second `uuid()` would be another."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.lone: list[str] = []  # expressions that stood alone in a value
        self._found: dict[str, Any] = {}

    @property
    def replacements(self) -> dict[str, Any]:
        """What each `{{ }}` came to, as it is written in the definition; of a large value the beginning."""
        return {text: _bounded(value) for text, value in self._found.items()}

    def value(self, given: Any) -> Any:
        """A value of the definition, as `View.value` gives it."""
        if isinstance(given, str):
            return self._text(given) if has_template(given) else given
        if isinstance(given, dict):
            return {self.text(key): self.value(item) for key, item in given.items()}
        if isinstance(given, list | tuple):
            return [self.value(item) for item in given]
        return given

    def text(self, given: str) -> str:
        """A text of the definition, whatever its templates yield."""
        return as_text(self.value(given))

    def seconds(self, given: float | str | None, key: str) -> float | None:
        """A duration of the definition that is longer than nothing; None where there is none."""
        if not isinstance(given, str):
            return given
        found = self.value(given)
        try:
            seconds_s = None if found is None else duration.seconds(found)
        except ValueError as error:
            raise StepFailed(f"{key}: {error}") from None
        if seconds_s == 0:
            raise StepFailed(f"{key} has to be longer than nothing")
        return seconds_s

    def command(self, command: str | tuple[str, ...]) -> str:
        """A command as one text for another shell, which reads no value in it as code."""
        compiled = self.view.texts.command(command)
        shown = compiled.prepare(self._noting(compiled.placeholders, compiled.slots, self._found)).standalone()
        try:
            shown.encode()
        except UnicodeEncodeError:
            message = "the command holds a name that is no UTF-8, so it cannot be handed out; use `shell_command`"
            raise StepFailed(message) from None
        return shown

    def path(self, text: str) -> str:
        """Where a write will go; as it is written where that cannot be known before the step is done."""
        if not has_template(text):
            return text
        compiled = self.view.texts.path(text)
        if not _LATER.isdisjoint(compiled.names):
            return text
        slots = [slot for segment in compiled.segments if not isinstance(segment, int) for slot in segment.slots]
        found: dict[str, Any] = {}
        try:
            shown = paths.show(compiled.resolve(self._noting(_written(text, slots), slots, found)))
        except ExpressionError:  # it may read what the agent is going to write
            return text
        self._found |= found
        return shown

    def _text(self, text: str) -> Any:
        compiled = self.view.texts.value(text)
        standing = [part for part in compiled.parts if not isinstance(part, str) or part.strip()]
        if len(standing) == 1:
            self.lone.append(standing[0].placeholder.source)
        return compiled.render(self._noting(_written(text, compiled.slots), compiled.slots, self._found))

    def _noting(
        self, written: Sequence[str], slots: Sequence[Slot], found: dict[str, Any]
    ) -> Callable[[Expression], Any]:
        """Runs programs in the order of their slots, which is the order in which a text is rendered."""
        left = zip(written, slots, strict=True)

        def run(program: Expression) -> Any:
            text, slot = next(left)
            value = self.view.run(program)
            found[text] = filtered(value, slot.placeholder.filters, slot.placeholder.offset)
            return value

        return run


def _written(text: str, slots: Sequence[Slot]) -> list[str]:
    """Each `{{ }}` as it stands in the definition."""
    return [text[slot.placeholder.offset : slot.placeholder.end] for slot in slots]


def _bounded(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size <= LARGEST_VALUE_BYTES:
        return value
    return f"{text[:_BEGINNING]}… (cut: {size} bytes in all, and `definition` has the whole)"


# What an outside agent is told to do with a step, and how to report it.
#
# These are sidecar's own words. A value that came from a file, a command or another agent stands in `definition` only,
# where it is data: here it would be read as an order.
#


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
    return "\n".join([*lines, *_circumstances_instructions(definition), *_report(definition, result, reporting)])


def _circumstances_instructions(definition: Mapping[str, Any]) -> list[str]:
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


def _agent_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = ["Do what `definition.prompt` says."]
    lines += _for_whom(definition)
    if "parameters" in definition:
        lines.append("`definition.parameters` belong to the prompt.")
    return lines, _FORMATS[definition["output_format"]].format("the answer that the prompt asks for")


def _apply_hints_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = [
        "Apply the hints in `definition.hints` to the file `definition.file`, and change nothing else.",
        "Leave out those that do not fit it. Count those that you applied.",
    ]
    return lines + _for_whom(definition), 'that count, as {"applied_count": 3}'


def _agent_shell_command_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = [
        "Run `definition.command` with a shell, exactly as it stands: the values in it are quoted already.",
        "If its exit code is not 0, it has failed: say the code and the end of its output.",
    ]
    if "reason" in definition:
        lines.insert(1, "`definition.reason` says why you are asked to.")
    return lines, _FORMATS[definition["output_format"]].format("the command's standard output")


def _mcp_call_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    server = " of the MCP server `definition.server`" if "server" in definition else ""
    lines = [f"Call the MCP tool `definition.method`{server} with `definition.params` as its arguments, unchanged."]
    return lines, "what the tool returned: its structured content if it has any, else its text"


def _user_input_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = ["Ask the user `definition.prompt`, and wait for the answer. Do not answer in the user's place."]
    if "choices" in definition:
        lines.append("Only one of `definition.choices` is an answer.")
    if "validation" in definition:
        lines.append("An answer matches the regular expression (JavaScript's) `definition.validation.pattern`.")
        lines.append("If it does not, say `definition.validation.error_message` and ask again.")
    if "default" in definition:
        lines.append("Where the user just agrees, the answer is `definition.default`.")
    return lines, f"the answer, as {_ANSWERS[definition['type']]}"


def _user_message_instructions(_: Mapping[str, Any]) -> tuple[list[str], None]:
    return ["Show the user `definition.message`, as it stands."], None


def _tasks_instructions(definition: Mapping[str, Any]) -> tuple[list[str], None]:
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
    "agent": _agent_instructions,
    "apply_hints": _apply_hints_instructions,
    "agent_shell_command": _agent_shell_command_instructions,
    "mcp_call": _mcp_call_instructions,
    "user_input": _user_input_instructions,
    "user_message": _user_message_instructions,
    "parallel_tasks": _tasks_instructions,
}


# What an outside agent reported of a step, as the value that becomes the step's result.


class Report(NamedTuple):
    """What an agent says of a step that it was handed."""

    step_id: str
    status: str = "success"
    result: Any = None
    error: str | None = None
    task_id: str | None = None
    attempt: int | None = None  # which one it was handed; None: it does not say


def read_result(step: StepBase, reported: object, *, definition: Mapping[str, Any], view: View) -> Any:
    """The result, the same that the step would have if sidecar itself had done it.

    `definition` is the one that was handed out: an answer belongs to the question that was asked. InputError says what
    would be right; the step is then still in the agent's hands, to be reported again. A step that has no result has
    none here either, whatever was reported.
    """
    if isinstance(step, RunsSomewhere):
        return _in_format(reported, step.output_format)
    if isinstance(step, ApplyHints):
        return _count(reported)
    if isinstance(step, UserInput):
        return _answer(reported, definition, view)
    if isinstance(step, McpCall):
        return _read_where_json(reported)
    return None


def _in_format(reported: object, wanted: OutputFormat) -> Any:
    """A text is read as an output would be; a value of the right kind is taken as it is, and so is nothing."""
    if reported is None:
        return output.nothing(wanted)
    if isinstance(reported, str):
        return _read(reported, wanted)
    if wanted == "text":
        return as_text(reported)
    if wanted == "lines":
        if not isinstance(reported, list):
            raise InputError("`result` has to be a list of lines, or a text")
        return [as_text(line) for line in reported]
    if wanted == "key_value":
        if not isinstance(reported, dict):
            raise InputError("`result` has to be an object, or a text with lines such as key=value")
        return {key: as_text(value) for key, value in reported.items()}
    return reported


def _read(text: str, wanted: OutputFormat) -> Any:
    try:
        return output.answer_value(text, wanted)
    except StepFailed as error:
        raise InputError(f"`result` does not fit the format {wanted}: {error}") from None


def _count(reported: object) -> dict[str, Any]:
    found = output.applied_hints(reported)
    if found is None:
        raise InputError(f'`result` has to say how many hints were applied, as in {{"{output.COUNT}": 3}}')
    return found


def _answer(reported: object, definition: Mapping[str, Any], view: View) -> Any:
    question = {**definition, **definition.get("validation", {})}
    try:
        return user_input.accepted(question, reported, user_input.matching(view))
    except ValueError as error:
        raise InputError(str(error)) from None


def _read_where_json(reported: object) -> Any:
    if not isinstance(reported, str):
        return reported
    try:
        return output.formatted(reported, "json")
    except StepFailed:
        return reported
