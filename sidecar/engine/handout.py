"""Describes a step for an outside agent, and reads what the agent reports of it.

A description has every template filled in, and says what to do and how to report it. These instructions are sidecar's
own words: a value that came from a file, a command or another agent stands in `definition` only, where it is data.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sidecar.engine.evaluation import View, positive_s
from sidecar.engine.steps import output, user_input
from sidecar.errors import ExpressionError, InputError, StepFailed
from sidecar.model.language import has_template
from sidecar.model.steps import (
    AgentShellCommand,
    AgentStep,
    ApplyHints,
    McpCall,
    OutputFormat,
    ParallelForEach,
    RunsSomewhere,
    StepBase,
    Update,
    UserInput,
    UserMessage,
    Working,
)
from sidecar.state import paths
from sidecar.state.script import Expression
from sidecar.state.template import Slot, Text, as_text, filtered

Json = dict[str, Any]
NamedPrompt = Callable[[str, Json], str]

LARGEST_VALUE_BYTES = 64 * 1024
_BEGINNING = 1000  # characters that are kept of a larger value
_KNOWN_LATER = frozenset({"result", "applied_count", "error"})  # once the step is done
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class RecordingView(View):
    """A view that records the value of each `{{ }}` that it evaluates."""

    values: Json  # by the `{{ }}` as it is written in the definition
    sole_expressions: list[str]  # those that stood alone in their text

    @classmethod
    def of(cls, view: View, **names: Any) -> RecordingView:
        """A view of the same place, with more names."""
        recording = cls(view.texts, view.world, {**view.names, **names})
        recording.values, recording.sole_expressions = {}, []
        return recording

    @property
    def replacements(self) -> Json:
        """The recorded values; of a large one the beginning."""
        return {text: _bounded(value) for text, value in self.values.items()}

    def rendered(self, text: str) -> Any:
        compiled = self.texts.value(text)
        self.sole_expressions.extend(_sole_expression(compiled))
        return compiled.render(self._recorder(compiled.slots, self.values))

    def shown_command(self, command: str | tuple[str, ...]) -> str:
        """A command as one text for another shell, which reads no value in it as code."""
        compiled = self.texts.command(command)
        shown = compiled.prepare(self._recorder(compiled.slots, self.values)).standalone()
        try:
            shown.encode()
        except UnicodeEncodeError:
            message = "the command holds a name that is no UTF-8, so it cannot be handed out; use `shell_command`"
            raise StepFailed(message) from None
        return shown

    def shown_path(self, text: str) -> str:
        """Where a write will go; as it is written where that is known only once the step is done."""
        if not has_template(text):
            return text
        compiled = self.texts.path(text)
        if not _KNOWN_LATER.isdisjoint(compiled.names):
            return text
        slots = [slot for segment in compiled.segments if not isinstance(segment, int) for slot in segment.slots]
        found: Json = {}
        try:
            shown = paths.show(compiled.resolve(self._recorder(slots, found)))
        except ExpressionError:  # it may read what the agent is going to write
            return text
        self.values.update(found)
        return shown

    def _recorder(self, slots: Sequence[Slot], values: Json) -> Callable[[Expression], Any]:
        """Evaluates the expressions in the order of their slots, which is the order in which a text is rendered."""
        following = iter(slots)

        def run(expression: Expression) -> Any:
            placeholder = next(following).placeholder
            value = self.run(expression)
            values[placeholder.text] = filtered(value, placeholder.filters, placeholder.offset)
            return value

        return run


def _sole_expression(text: Text) -> list[str]:
    parts = [part for part in text.parts if not isinstance(part, str) or part.strip()]
    return [part.placeholder.source for part in parts if isinstance(part, Slot)] if len(parts) == 1 else []


def _bounded(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size <= LARGEST_VALUE_BYTES:
        return value
    return f"{text[:_BEGINNING]}… (cut: {size} bytes in all, and `definition` has the whole)"


# --- a step as JSON


class _Ids(NamedTuple):
    """By which ids a step is reported."""

    workflow_id: str
    step_id: str
    attempt: int
    task_id: str | None

    @property
    def arguments(self) -> str:
        """The arguments that every report of the step has."""
        return ", ".join(f"{name} {json.dumps(value)}" for name, value in self._asdict().items() if value is not None)


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
) -> Json:
    """Describe a step. `named_prompt` renders a prompt by name; `additions` are what was said to the step since.

    A `parallel_foreach` is for `hand_out_tasks`; TypeError where the step is none that an agent can be given.
    """
    define = _DEFINITIONS.get(type(step))
    if define is None:
        raise TypeError(f"a {getattr(step, 'type', 'step')} is not handed out")
    recording = RecordingView.of(view)
    kind: str = step.type  # type: ignore[attr-defined]
    definition = _with_texts(kind, define(step, recording, named_prompt), additions)
    if step.description:
        definition["description"] = step.description
    if isinstance(step, Working):
        definition |= _common_keys(step, recording)
    ids = _Ids(workflow_id, key, attempt, task_id)
    return _described(kind, definition, recording.replacements, recording.sole_expressions, ids)


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
) -> Json:
    """Describe all tasks of a `parallel_foreach` that are still to be done, as one step.

    `tasks` are the names in the scope of each (`item`, `index`, its inputs), by its id: as the tasks themselves have
    them, since to evaluate them again could give others. `description` is the task's own. `sub_agent_prompt` is
    the standard one, which an override of the step replaces; one that reads those names, `task_id` or `workflow_id`
    becomes a prompt for each task.
    """
    listed: list[Json] = []
    for own, names in tasks.items():
        listed.append({"task_id": own, "context": {**names, "workflow_id": workflow_id, "task_id": own}})
    recording = RecordingView.of(view, description=description)
    definition: Json = {"tasks": listed, "max_parallel": max_parallel, "wait_for_all": step.wait_for_all}
    override = step.sub_agent_prompt_override
    if override is None:
        definition["sub_agent_prompt"] = sub_agent_prompt
    elif any(_mentions(view, override, entry["context"]) for entry in listed):
        for entry in listed:  # not `with_names`: a task may call an input `self`
            own_names = {**recording.names, **entry["context"]}
            entry["prompt"] = View(view.texts, view.world, own_names).text(override)
    else:
        definition["sub_agent_prompt"] = recording.text(override)
    definition |= _name("agent", step.agent, recording)
    if step.description or description:
        definition["description"] = step.description or description
    definition = _with_texts("parallel_tasks", definition, additions)
    # What `items` came to stands in the contexts, item by item; a second time would only cost the agent.
    sole = _sole_expression(view.texts.value(step.items)) if isinstance(step.items, str) else []
    ids = _Ids(workflow_id, key, attempt, task_id)
    return _described("parallel_tasks", definition, recording.replacements, sole, ids)


def with_additions(step: Mapping[str, Any], additions: Sequence[str], *, workflow_id: str, task_id: str | None) -> Json:
    """A step that was handed out, with what was said to it since."""
    definition = _with_texts(step["type"], step["definition"], additions)
    ids = _Ids(workflow_id, step["id"], step["attempt"], task_id)
    changed = {"definition": definition, "instructions": _instructions(step["type"], definition, ids)}
    cleaned: Json = _sendable({**step, **changed})
    return cleaned


def _with_texts(kind: str, definition: Json, additions: Sequence[str]) -> Json:
    """What was said to a step stands behind all that its author wrote: in a prompt, or as notes."""
    if not additions:
        return definition
    if kind == "agent":
        return {**definition, "prompt": "\n\n".join([definition["prompt"].rstrip("\n"), *additions])}
    return {**definition, "notes": [*definition.get("notes", ()), *additions]}


def _described(kind: str, definition: Json, replacements: Json, sole_expressions: list[str], ids: _Ids) -> Json:
    step: Json = {
        "id": ids.step_id,
        "attempt": ids.attempt,
        "type": kind,
        "instructions": _instructions(kind, definition, ids),
        "definition": definition,
    }
    if replacements:
        step["variable_replacements"] = replacements
    if sole_expressions:
        step["original_expression"] = "; ".join(dict.fromkeys(sole_expressions))
    cleaned: Json = _sendable(step)
    return cleaned


def _mentions(view: View, text: str, names: Mapping[str, Any]) -> bool:
    return has_template(text) and not view.texts.value(text).names.isdisjoint(names)


def _sendable(value: Any) -> Any:
    """Only what JSON and UTF-8 can carry: as in JavaScript's own JSON, NaN and Infinity become null."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value


# --- `definition`, by type of step


def _agent_definition(step: AgentStep, view: RecordingView, named_prompt: NamedPrompt) -> Json:
    parameters = view.value(step.parameters)
    definition: Json = {}
    if step.prompt_name is not None:
        definition = {"prompt_name": step.prompt_name, "prompt": named_prompt(step.prompt_name, parameters)}
    else:
        prompt = view.text(step.prompt or "")
        definition = {**({"parameters": parameters} if parameters else {}), "prompt": prompt}
    return definition | _name("agent", step.agent, view)


def _apply_hints_definition(step: ApplyHints, view: RecordingView, _: NamedPrompt) -> Json:
    return {"file": view.text(step.file), "hints": view.value(step.hints)} | _name("agent", step.agent, view)


def _shell_definition(step: AgentShellCommand, view: RecordingView, _: NamedPrompt) -> Json:
    definition = {"command": view.shown_command(step.command)}
    return definition | ({"reason": view.text(step.reason)} if step.reason else {})


def _mcp_call_definition(step: McpCall, view: RecordingView, _: NamedPrompt) -> Json:
    definition = {"method": view.text(step.mcp.method), "params": view.value(step.mcp.params)}
    return definition | _name("server", step.mcp.server, view)


def _user_input_definition(step: UserInput, view: RecordingView, _: NamedPrompt) -> Json:
    definition: Json = {"prompt": view.text(step.prompt), "type": step.answer_type}
    if step.validation is not None:
        message = view.text(step.validation.error_message)
        definition["validation"] = {"pattern": step.validation.pattern, "error_message": message}
    if step.choices is not None:
        definition["choices"] = view.value(step.choices)
    if step.default is not None:
        definition["default"] = view.value(step.default)
    return definition


def _user_message_definition(step: UserMessage, view: RecordingView, _: NamedPrompt) -> Json:
    return {"message": view.text(step.message)}


_DEFINITIONS: dict[type[StepBase], Callable[[Any, RecordingView, NamedPrompt], Json]] = {
    AgentStep: _agent_definition,
    ApplyHints: _apply_hints_definition,
    AgentShellCommand: _shell_definition,
    McpCall: _mcp_call_definition,
    UserInput: _user_input_definition,
    UserMessage: _user_message_definition,
}


HANDED_OUT = tuple(_DEFINITIONS)  # the steps that an outside agent executes, and not the sidecar itself


def _name(key: str, name: str | None, view: RecordingView) -> Json:
    """The name of an agent or a server; nothing where a template yields none, which means the default."""
    found = "" if name is None else view.text(name)
    return {key: found} if found else {}


def _common_keys(step: Working, view: RecordingView) -> Json:
    """The keys that steps of several types have."""
    found: Json = {}
    if isinstance(step, RunsSomewhere):
        found["output_format"] = step.output_format
        if step.working_dir is not None:
            found["working_dir"] = view.text(step.working_dir)
        if step.env:
            found["env"] = {name: view.text(value) for name, value in step.env.items()}
    timeout_s = positive_s(view, step.timeout_s, "timeout")
    if timeout_s is not None:
        found["timeout_s"] = timeout_s
    if step.state_update is not None:
        found["state_update"] = _update(step.state_update, view)
    return found


def _update(update: Update, view: RecordingView) -> Json:
    """A write that is still to come. Its value stays as it is written: it depends on the result, and on the state as
    it will be then."""
    operation = {} if update.operation == "set" else {"operation": update.operation}
    default = 1 if update.operation == "increment" else "{{ result }}"
    value = update.value if update.has_value else default
    return {"path": view.shown_path(update.path), **operation, "value": value}


# --- `instructions`, by type of step: what to do, then how to report it

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
_FOR_AGENT = "It is meant for the agent `definition.agent`: have that one do it if you can, else do it yourself."


def _instructions(kind: str, definition: Mapping[str, Any], ids: _Ids) -> str:
    lines, result = _INSTRUCTIONS[kind](definition)
    if "working_dir" in definition:
        lines.append("Do it in the directory `definition.working_dir`, which is relative to the project's root.")
    if "env" in definition:
        lines.append("Have the variables of `definition.env` in its environment.")
    if "timeout_s" in definition:
        lines.append(f"It may take {definition['timeout_s']:g} seconds; if it takes longer, it has failed.")
    if "notes" in definition:
        lines.append("Heed `definition.notes`: a person said that meanwhile.")
    done = f"When it is done, call workflow_step_complete with {ids.arguments}"
    lines.append(f"{done}." if result is None else f"{done} and result: {result}.")
    if "state_update" in definition:
        lines.append("The sidecar does the `definition.state_update` with that result; do not write it yourself.")
    lines.append(
        f'If it cannot be done, call workflow_step_complete with {ids.arguments}, status "failed" and error: why.'
    )
    return "\n".join(lines)


def _agent_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = ["Do what `definition.prompt` says."]
    if "agent" in definition:
        lines.append(_FOR_AGENT)
    if "parameters" in definition:
        lines.append("`definition.parameters` belong to the prompt.")
    return lines, _FORMATS[definition["output_format"]].format("the answer that the prompt asks for")


def _apply_hints_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = [
        "Apply the hints in `definition.hints` to the file `definition.file`, and change nothing else.",
        "Leave out those that do not fit it. Count those that you applied.",
    ]
    return lines + ([_FOR_AGENT] if "agent" in definition else []), 'that count, as {"applied_count": 3}'


def _shell_instructions(definition: Mapping[str, Any]) -> tuple[list[str], str]:
    lines = [
        "Run `definition.command` with a shell, unchanged: the values in it are quoted already.",
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
            "It is done when the FIRST of them has ended; let the others continue, and start the remaining ones."
        )
    lines.append("The sidecar knows which tasks are done and which have failed; you need not report them.")
    return lines, None


_INSTRUCTIONS: dict[str, Callable[[Mapping[str, Any]], tuple[list[str], str | None]]] = {
    "agent": _agent_instructions,
    "apply_hints": _apply_hints_instructions,
    "agent_shell_command": _shell_instructions,
    "mcp_call": _mcp_call_instructions,
    "user_input": _user_input_instructions,
    "user_message": lambda _: (["Show the user `definition.message`, unchanged."], None),
    "parallel_tasks": _tasks_instructions,
}


# --- what an agent reports


class StepReport(NamedTuple):
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
    would be right; the step then stays handed out, to be reported again. A step that has no result has none here
    either, whatever was reported.
    """
    if isinstance(step, RunsSomewhere):
        return _in_format(reported, step.output_format)
    if isinstance(step, ApplyHints):
        if (found := output.applied_hints(reported)) is None:
            raise InputError(f'`result` has to say how many hints were applied, as in {{"{output.COUNT}": 3}}')
        return found
    if isinstance(step, UserInput):
        question = {**definition, **definition.get("validation", {})}
        try:
            return user_input.accepted(question, reported, user_input.matching(view))
        except ValueError as error:
            raise InputError(str(error)) from None
    if isinstance(step, McpCall) and isinstance(reported, str):
        try:
            return output.formatted(reported, "json")
        except StepFailed:
            return reported
    return reported if isinstance(step, McpCall) else None


def _in_format(reported: object, wanted: OutputFormat) -> Any:
    """A text is parsed as an output would be; a value of the right type is taken as it is, and so is nothing."""
    if reported is None:
        return output.nothing(wanted)
    if isinstance(reported, str):
        try:
            return output.answer_value(reported, wanted)
        except StepFailed as error:
            raise InputError(f"`result` does not fit the format {wanted}: {error}") from None
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
