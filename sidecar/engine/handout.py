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
_Description = tuple[Json, list[str], str | None]  # `definition`, what to do, and what to report as the result

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


class StepIds(NamedTuple):
    """By which ids a step is handed out, and reported."""

    workflow_id: str
    step_id: str
    attempt: int
    task_id: str | None = None


def hand_out(step: StepBase, view: View, ids: StepIds, named_prompt: NamedPrompt) -> Json:
    """Describe a step. `named_prompt` renders a prompt by name.

    A `parallel_foreach` is for `hand_out_tasks`; TypeError where the step is none that an agent can be given.
    """
    describe = _DESCRIPTIONS.get(type(step))
    if describe is None:
        raise TypeError(f"a {getattr(step, 'type', 'step')} is not handed out")
    recording = RecordingView.of(view)
    definition, lines, result = describe(step, recording, named_prompt)
    if step.description:
        definition["description"] = step.description
    if isinstance(step, Working):
        definition |= _common_keys(step, recording)
    lines += [text.format(**definition) for key, text in _ABOUT_KEYS.items() if key in definition]
    kind: str = step.type  # type: ignore[attr-defined]
    return _described(kind, (definition, lines, result), recording, recording.sole_expressions, ids)


def hand_out_tasks(
    step: ParallelForEach,
    view: View,
    ids: StepIds,
    *,
    tasks: Mapping[str, Mapping[str, Any]],
    max_parallel: int,
    sub_agent_prompt: str,
    description: str = "",
) -> Json:
    """Describe all tasks of a `parallel_foreach` that are still to be done, as one step.

    `tasks` are the names in the scope of each (`item`, `index`, its inputs), by its id: as the tasks themselves have
    them, since to evaluate them again could give others. `description` is the task's own. `sub_agent_prompt` is
    the standard one, which an override of the step replaces; one that reads those names, `task_id` or `workflow_id`
    becomes a prompt for each task.
    """
    listed: list[Json] = []
    for own, names in tasks.items():
        listed.append({"task_id": own, "context": {**names, "workflow_id": ids.workflow_id, "task_id": own}})
    recording = RecordingView.of(view, description=description)
    definition: Json = {"tasks": listed, "max_parallel": max_parallel, "wait_for_all": step.wait_for_all}
    override, prompt = step.sub_agent_prompt_override, "`definition.sub_agent_prompt` as its prompt"
    if override is None:
        definition["sub_agent_prompt"] = sub_agent_prompt
    elif has_template(override) and any(view.texts.value(override).names & entry["context"].keys() for entry in listed):
        prompt = "the entry's `prompt` as its prompt"
        for entry in listed:  # not `with_names`: a task may call an input `self`
            own_names = {**recording.names, **entry["context"]}
            entry["prompt"] = View(view.texts, view.world, own_names).text(override)
    else:
        definition["sub_agent_prompt"] = recording.text(override)
    definition |= _name("agent", step.agent, recording)
    if step.description or description:
        definition["description"] = step.description or description
    lines = [
        f"Start a sub-agent for EACH entry of `definition.tasks`, at most {max_parallel} at a time.",
        f"Give it {prompt}, with the entry's `task_id` and the whole `context`: it asks for its own steps with them.",
    ]
    if "agent" in definition:
        lines.append("The sub-agents are meant to be `definition.agent`, if you can have that one.")
    if step.wait_for_all:
        lines.append("It is done when ALL the sub-agents have ended. Do not do their steps yourself.")
    else:
        lines.append(
            "It is done when the FIRST of them has ended; let the others continue, and start the remaining ones."
        )
    lines.append("The sidecar knows which tasks are done and which have failed; you need not report them.")
    # What `items` came to stands in the contexts, item by item; a second time would only cost the agent.
    sole = _sole_expression(view.texts.value(step.items)) if isinstance(step.items, str) else []
    return _described("parallel_tasks", (definition, lines, None), recording, sole, ids)


def with_additions(step: Mapping[str, Any], additions: Sequence[str]) -> Json:
    """A step that is handed out, with what was said to it since. That stands behind all that its author wrote: in a
    prompt, or as notes."""
    if not additions:
        return dict(step)
    definition, instructions = step["definition"], step["instructions"]
    if step["type"] == "agent":
        definition = {**definition, "prompt": "\n\n".join([definition["prompt"].rstrip("\n"), *additions])}
    else:
        instructions += "" if "notes" in definition else f"\n{_ABOUT_NOTES}"
        definition = {**definition, "notes": [*definition.get("notes", ()), *additions]}
    cleaned: Json = _sendable({**step, "definition": definition, "instructions": instructions})
    return cleaned


def _described(
    kind: str, description: _Description, recording: RecordingView, sole_expressions: list[str], ids: StepIds
) -> Json:
    definition, lines, result = description
    given = ", ".join(f"{name} {json.dumps(value)}" for name, value in ids._asdict().items() if value is not None)
    done = f"When it is done, call workflow_step_complete with {given}"
    lines.append(f"{done}." if result is None else f"{done} and result: {result}.")
    if "state_update" in definition:
        lines.append("The sidecar does the `definition.state_update` with that result; do not write it yourself.")
    lines.append(f'If it cannot be done, call workflow_step_complete with {given}, status "failed" and error: why.')
    step: Json = {
        "id": ids.step_id,
        "attempt": ids.attempt,
        "type": kind,
        "instructions": "\n".join(lines),
        "definition": definition,
    }
    if recording.values:
        step["variable_replacements"] = {text: _bounded(value) for text, value in recording.values.items()}
    if sole_expressions:
        step["original_expression"] = "; ".join(dict.fromkeys(sole_expressions))
    cleaned: Json = _sendable(step)
    return cleaned


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


# --- by type of step: its `definition`, what to do, and what to report as the result


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
# What the instructions say about keys of `definition` that a step may have.
_ABOUT_KEYS = {
    "agent": "It is meant for the agent `definition.agent`: have that one do it if you can, else do it yourself.",
    "parameters": "`definition.parameters` belong to the prompt.",
    "reason": "`definition.reason` says why you are asked to.",
    "choices": "Only one of `definition.choices` is an answer.",
    "validation": "An answer matches the regular expression (JavaScript's) `definition.validation.pattern`.\n"
    "If it does not, say `definition.validation.error_message` and ask again.",
    "default": "Where the user just agrees, the answer is `definition.default`.",
    "working_dir": "Do it in the directory `definition.working_dir`, which is relative to the project's root.",
    "env": "Have the variables of `definition.env` in its environment.",
    "timeout_s": "It may take {timeout_s:g} seconds; if it takes longer, it has failed.",
}
_ABOUT_NOTES = "Heed `definition.notes`: a person said that meanwhile."


def _agent(step: AgentStep, view: RecordingView, named_prompt: NamedPrompt) -> _Description:
    parameters = view.value(step.parameters)
    if step.prompt_name is not None:
        definition = {"prompt_name": step.prompt_name, "prompt": named_prompt(step.prompt_name, parameters)}
    else:
        prompt = view.text(step.prompt or "")
        definition = {**({"parameters": parameters} if parameters else {}), "prompt": prompt}
    definition |= _name("agent", step.agent, view)
    result = _FORMATS[step.output_format].format("the answer that the prompt asks for")
    return definition, ["Do what `definition.prompt` says."], result


def _apply_hints(step: ApplyHints, view: RecordingView, _: NamedPrompt) -> _Description:
    definition = {"file": view.text(step.file), "hints": view.value(step.hints)} | _name("agent", step.agent, view)
    lines = [
        "Apply the hints in `definition.hints` to the file `definition.file`, and change nothing else.",
        "Leave out those that do not fit it. Count those that you applied.",
    ]
    return definition, lines, 'that count, as {"applied_count": 3}'


def _shell_command(step: AgentShellCommand, view: RecordingView, _: NamedPrompt) -> _Description:
    definition = {"command": view.shown_command(step.command)}
    definition |= {"reason": view.text(step.reason)} if step.reason else {}
    lines = [
        "Run `definition.command` with a shell, unchanged: the values in it are quoted already.",
        "If its exit code is not 0, it has failed: say the code and the end of its output.",
    ]
    return definition, lines, _FORMATS[step.output_format].format("the command's standard output")


def _mcp_call(step: McpCall, view: RecordingView, _: NamedPrompt) -> _Description:
    definition = {"method": view.text(step.mcp.method), "params": view.value(step.mcp.params)}
    definition |= _name("server", step.mcp.server, view)
    server = " of the MCP server `definition.server`" if "server" in definition else ""
    lines = [f"Call the MCP tool `definition.method`{server} with `definition.params` as its arguments, unchanged."]
    return definition, lines, "what the tool returned: its structured content if it has any, else its text"


def _user_input(step: UserInput, view: RecordingView, _: NamedPrompt) -> _Description:
    asked = user_input.question(step, view)
    definition = {key: asked[key] for key in ("prompt", "type", "choices", "default") if asked[key] is not None}
    if step.validation is not None:
        definition["validation"] = {key: asked[key] for key in ("pattern", "error_message")}
    lines = ["Ask the user `definition.prompt`, and wait for the answer. Do not answer in the user's place."]
    return definition, lines, f"the answer, as {_ANSWERS[step.answer_type]}"


def _user_message(step: UserMessage, view: RecordingView, _: NamedPrompt) -> _Description:
    return {"message": view.text(step.message)}, ["Show the user `definition.message`, unchanged."], None


_DESCRIPTIONS: dict[type[StepBase], Callable[[Any, RecordingView, NamedPrompt], _Description]] = {
    AgentStep: _agent,
    ApplyHints: _apply_hints,
    AgentShellCommand: _shell_command,
    McpCall: _mcp_call,
    UserInput: _user_input,
    UserMessage: _user_message,
}
HANDED_OUT = tuple(_DESCRIPTIONS)  # the steps that an outside agent executes, and not the sidecar itself


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
