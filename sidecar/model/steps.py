"""The steps of the workflow language: one class per type, with every key that a step of the type can have."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, TypeAlias, Union, get_args

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, ValidationInfo, model_validator

from sidecar.model.events import STEP_TYPES
from sidecar.model.language import (
    Command,
    Condition,
    Count,
    Duration,
    Flag,
    Items,
    Name,
    Path,
    PositiveCount,
    PositiveDuration,
    Role,
    StrictModel,
    Text,
    VariableName,
    Word,
    has_template,
)
from sidecar.model.parameters import Type

Operation = Literal["set", "append", "increment", "merge"]
OPERATION_TEXT = (
    "set: replace the value; append: add to the end of a list; increment: add to a number; merge: add the "
    "keys of an object."
)
PATH_TEXT = "The field to write, below `raw.` or `state.`."
VALUE_TEXT = "What to write. Only `increment` does without, and then adds 1."
VALUE_IS_MISSING = "`value` is missing: only `increment` does without, and then adds 1"
# The same rule for JSON Schema.
NEEDS_VALUE: dict[str, JsonValue] = {
    "anyOf": [
        {"required": ["value"]},
        {"required": ["operation"], "properties": {"operation": {"const": "increment"}}},
    ]
}


class Update(StrictModel):
    """One write of a step's result, or of a value that it leads to."""

    path: Annotated[Path, Role.PATH] = Field(description=PATH_TEXT)
    operation: Operation = Field(default="set", description=OPERATION_TEXT)
    value: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="What to write. Without this key: the step's result; for `increment`, 1."
    )

    @property
    def has_value(self) -> bool:
        """Whether the author gave a value. `null` is one."""
        return "value" in self.model_fields_set


class FullUpdate(Update):
    """A write that stands alone: there is no result that could be meant."""

    model_config = ConfigDict(json_schema_extra=NEEDS_VALUE)

    value: Annotated[JsonValue, Role.VALUE] = Field(default=None, description=VALUE_TEXT)

    @model_validator(mode="after")
    def _value_is_given(self) -> FullUpdate:
        if self.operation != "increment" and not self.has_value:
            raise ValueError(VALUE_IS_MISSING)
        return self


# Steps that do something


OutputFormat = Literal["lines", "json", "text", "key_value"]


def _instead_of(other: str) -> AfterValidator:
    """Of this key and one above it, exactly one is given. The field has `validate_default`."""

    def check(value: object, info: ValidationInfo) -> object:
        if other in info.data:  # else it is wrong itself, and reported
            key = other.removesuffix("_s")  # a duration
            if value is None and info.data[other] is None:
                raise ValueError(f"is missing, and so is `{key}`: one of them is needed")
            if value is not None and info.data[other] is not None:
                raise ValueError(f"stands beside `{key}`: only one of them can hold")
        return value

    return AfterValidator(check)


def _one_of(*keys: str) -> dict[str, JsonValue]:
    """The same rule for JSON Schema."""
    return {"oneOf": [{"required": [key]} for key in keys]}


class StepBase(StrictModel):
    """What every step has."""

    id: Name = Field(
        default="",
        description="The step's name, unique in the workflow. Without this key it is named after its position, such "
        "as `2.while`.",
    )
    description: str = Field(default="", description="What the step is for; shown while it runs.")


class Fallible(StepBase):
    """What every step has that does something, and so can fail: all but control flow. They count as transitions."""

    on_error: Literal["fail", "continue", "retry"] = Field(
        default="fail",
        description="After an error. fail: the step fails, and `error_handling` decides about the run; continue: go "
        "on with the next step; retry: try again `retry_count` times, then fail.",
    )
    retry_count: Annotated[Count, Role.TEMPLATE] = Field(
        default=3, description="For `retry`: the number of further attempts."
    )
    retry_delay_s: Annotated[Duration, Role.TEMPLATE] = Field(
        default=1.0,
        json_schema_extra={"default": "1s"},
        alias="retry_delay",
        description="For `retry`: the pause before each further attempt.",
    )
    retry_backoff: Literal["constant", "exponential"] = Field(
        default="constant", description="exponential: each pause is twice as long as the one before."
    )
    fallback_value: Annotated[JsonValue, Role.VALUE] = Field(
        default=None,
        description="The step's result if it fails with `continue`, or after the last `retry`; the step then counts "
        "as completed.",
    )
    error_state_update: Update | None = Field(
        default=None, description="A write to the state when the step fails; `error` is in scope."
    )

    @property
    def has_fallback(self) -> bool:
        """Whether the author gave a fallback. `null` is one."""
        return "fallback_value" in self.model_fields_set


class Working(Fallible):
    """What every step has that yields a result and can take long."""

    timeout_s: Annotated[PositiveDuration | None, Role.TEMPLATE] = Field(
        default=None, alias="timeout", description="The step fails after this time; its process is ended."
    )
    state_update: Update | None = Field(
        default=None, description="A write to the state when the step completes; `result` is in scope."
    )


class RunsSomewhere(Working):
    """What every step has that starts a process."""

    working_dir: Annotated[Word | None, Role.TEMPLATE] = Field(
        default=None,
        description="The working directory, relative to the project's root and inside it. Without this key: the root.",
    )
    env: Annotated[dict[VariableName, Word], Role.VALUE] = Field(
        default={}, description="Environment variables for the process, besides those of the run."
    )
    output_format: OutputFormat = Field(
        default="text",
        description="How the output becomes the result. text: as it is, without the last line break; lines: a list of"
        " texts; json: one JSON value; key_value: an object, from lines `key=value` or `key: value`.",
    )


class ShellCommand(RunsSomewhere):
    """Runs a command. The result is its standard output; an exit code other than 0 is an error."""

    type: Literal["shell_command"]
    command: Annotated[Command, Role.COMMAND] = Field(
        description="A text, run by `sh`; or a list: a program and its arguments, run without a shell. A value from "
        "`{{ }}` never becomes code."
    )


class AgentShellCommand(RunsSomewhere):
    """Runs a command on the person's terminal if there is one. An agent that drives the run executes it itself."""

    type: Literal["agent_shell_command"]
    command: Annotated[Command, Role.COMMAND] = Field(
        description="A text, run by `sh`; or a list: a program and its arguments, run without a shell. A value from "
        "`{{ }}` never becomes code."
    )
    reason: Annotated[str, Role.MESSAGE] = Field(
        default="", description="Why the command needs a person or the driving agent."
    )


class AgentStep(RunsSomewhere):
    """Gives a prompt to an agent. The result is the agent's answer."""

    model_config = ConfigDict(title="Agent", json_schema_extra=_one_of("prompt", "prompt_name"))

    type: Literal["agent"]
    agent: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None, description="The agent's name. Without this key: the setting `default_agent`."
    )
    prompt: Annotated[Text | None, Role.PROMPT] = Field(
        default=None, description="What the agent is to do. Either this or `prompt_name` is required."
    )
    prompt_name: Annotated[Name | None, _instead_of("prompt")] = Field(
        default=None, validate_default=True, description="The name of a prompt file, instead of `prompt`."
    )
    parameters: Annotated[dict[str, JsonValue], Role.VALUE] = Field(
        default={},
        description="Values for the parameters of the prompt file; with `prompt`, for further parameters of the agent.",
    )


class McpTool(StrictModel):
    """A tool of an MCP server."""

    server: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None,
        description="A server in `.mcp.json` or in the setting `mcp_servers`. Without this key: the server that has "
        "the tool.",
    )
    method: Annotated[Text, Role.TEMPLATE] = Field(description="The name of the tool.")
    params: Annotated[dict[str, JsonValue], Role.VALUE] = Field(default={}, description="The arguments of the tool.")


class McpCall(Working):
    """Calls a tool of an MCP server. The result is the tool's structured answer, or its text."""

    type: Literal["mcp_call"]
    mcp: McpTool = Field(description="The tool and its arguments.")


class StateUpdate(Fallible):
    """Writes to the state: one field, or several in one transaction."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["path"], "properties": {"updates": False}, **NEEDS_VALUE},
                {"required": ["updates"], "properties": {"path": False, "value": False, "operation": False}},
            ]
        }
    )

    type: Literal["state_update"]
    path: Annotated[Path | None, Role.PATH] = Field(
        default=None, description=f"{PATH_TEXT} Either this or `updates` is required."
    )
    operation: Operation = Field(default="set", description=OPERATION_TEXT)
    value: Annotated[JsonValue, Role.VALUE] = Field(default=None, description=VALUE_TEXT)
    updates: Annotated[tuple[FullUpdate, ...] | None, Field(min_length=1), _instead_of("path")] = Field(
        default=None, validate_default=True, description="Several writes, all or none of them, instead of `path`."
    )

    @model_validator(mode="after")
    def _value_is_given(self) -> StateUpdate:
        given = self.model_fields_set & {"value", "operation"}
        if self.updates is not None and given:
            raise ValueError(f"`{min(given)}` cannot be used together with `updates`: put it into each of them")
        if self.updates is None and self.operation != "increment" and "value" not in given:
            raise ValueError(VALUE_IS_MISSING)
        return self

    @cached_property
    def writes(self) -> tuple[Update, ...]:
        """Its writes, however they are spelled."""
        if self.updates is not None:
            return self.updates
        own = {name: getattr(self, name) for name in ("path", "operation", "value") if name in self.model_fields_set}
        return (FullUpdate(**own),)


class InputValidation(StrictModel):
    """What an answer has to look like."""

    pattern: Annotated[str, Role.PATTERN] = Field(description="A JavaScript regular expression that has to match.")
    error_message: Annotated[str, Role.MESSAGE] = Field(
        default="", description="What the person is told if it does not match."
    )


class UserInput(Working):
    """Asks the person. The result is the answer. Without a terminal the run pauses until `sidecar answer`."""

    type: Literal["user_input"]
    prompt: Annotated[Text, Role.MESSAGE] = Field(description="The question.")
    validation: InputValidation | None = Field(default=None, description="A check of the answer.")
    answer_type: Type = Field(
        default="string",
        description="The type of the answer. yes, y, true, no, n and false are booleans; lists and objects are read as "
        "JSON.",
    )
    choices: Annotated[tuple[JsonValue, ...], Field(min_length=1)] | None = Field(
        default=None, description="The only answers that are accepted."
    )
    default: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="The answer if the person enters nothing."
    )

    @model_validator(mode="after")
    def _default_is_a_choice(self) -> UserInput:
        fixed = self.default is not None and not has_template(self.default)
        if fixed and self.choices is not None and self.default not in self.choices:
            raise ValueError(f"`default` is {self.default!r}, which is none of its `choices`")
        return self


class UserMessage(Fallible):
    """Shows a message: on the terminal, in `status`, in the log, and to the MCP client."""

    type: Literal["user_message"]
    message: Annotated[Text, Role.MESSAGE] = Field(description="The message.")


class ApplyHints(Working):
    """Has an agent apply hints to a file. In `state_update`, `applied_count` is how many the agent applied."""

    type: Literal["apply_hints"]
    file: Annotated[Text, Role.TEMPLATE] = Field(description="The file.")
    hints: Annotated[JsonValue, Role.VALUE] = Field(description="The hints: any value.")
    agent: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None, description="The agent's name. Without this key: the setting `default_agent`."
    )


AGENT_STEPS = (AgentStep, ApplyHints)  # executed by an agent, whoever drives the run


class Wait(Fallible):
    """Waits for a time, or until a condition is true."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["duration"], "properties": {"interval": False, "timeout": False}},
                {"required": ["until"]},
            ]
        }
    )

    type: Literal["wait"]
    duration_s: Annotated[Duration | None, Role.TEMPLATE] = Field(
        default=None, alias="duration", description="How long to wait. Either this or `until` is required."
    )
    until: Annotated[Condition | None, Role.CONDITION, _instead_of("duration_s")] = Field(
        default=None, validate_default=True, description="Wait until this is true, instead of `duration`."
    )
    interval_s: Annotated[PositiveDuration, Role.TEMPLATE] = Field(
        default=1.0,
        json_schema_extra={"default": "1s"},
        alias="interval",
        description="The time between two evaluations of `until`.",
    )
    timeout_s: Annotated[PositiveDuration | None, Role.TEMPLATE] = Field(
        default=None, alias="timeout", description="The step fails if `until` is not true within this time."
    )

    @model_validator(mode="after")
    def _looks_have_a_condition(self) -> Wait:
        if self.until is None and self.model_fields_set & {"interval_s", "timeout_s"}:
            raise ValueError("`interval` and `timeout` belong to `until`; a `duration` needs neither")
        return self


class Exit(StepBase):
    """Ends the run, at any depth of loops and conditions."""

    type: Literal["exit"]
    status: Literal["success", "failed"] = Field(
        default="success", description="success: the run is completed; failed: the run has failed."
    )
    message: Annotated[str, Role.MESSAGE] = Field(default="", description="The reason, shown as the run's end.")


# Steps that decide what runs next


DEFAULT_MAX_ITERATIONS = 100


class Conditional(StepBase):
    """Executes one of two lists of steps."""

    type: Literal["conditional"]
    condition: Annotated[Condition, Role.CONDITION] = Field(description="True: `then`; false: `else`.")
    then: Steps = Field(description="The steps if the condition is true.")
    else_: Steps | None = Field(default=None, alias="else", description="The steps if it is false.")


class Loop(StepBase):
    """What both loops have: their steps, called `body` or `steps`."""

    model_config = ConfigDict(json_schema_extra=_one_of("body", "steps"))

    body: Steps | None = Field(
        default=None, description="The steps of an iteration. Either this or `steps` is required."
    )
    steps: Annotated[Steps | None, _instead_of("body")] = Field(
        default=None, validate_default=True, description="Another name for `body`."
    )

    @property
    def inner(self) -> tuple[Step, ...]:
        """The steps of an iteration, whichever word the author chose."""
        return self.body if self.body is not None else self.steps or ()


class While(Loop):
    """Repeats steps while a condition is true. In the steps, `loop.index` counts the iterations from 0."""

    type: Literal["while"]
    condition: Annotated[Condition, Role.CONDITION] = Field(description="Evaluated before each iteration.")
    max_iterations: Annotated[PositiveCount, Role.TEMPLATE] = Field(
        default=DEFAULT_MAX_ITERATIONS,
        description="The run ends as a reached limit (exit code 3) if the condition is still true after so many "
        "iterations.",
    )


class ForEach(Loop):
    """Repeats steps for each item of a list, one after the other; `item` and `index` are in scope."""

    type: Literal["foreach"]
    items: Annotated[Items, Role.ITEMS] = Field(description="The list.")


class SubAgentErrors(StrictModel):
    """What a `parallel_foreach` does when a task fails."""

    strategy: Literal["retry_failed", "continue", "fail_all"] = Field(
        default="fail_all",
        description="fail_all: end the other tasks, and the step fails; continue: continue without the failed tasks; "
        "retry_failed: run each failed task again, then as fail_all.",
    )
    max_retries: Annotated[Count, Role.TEMPLATE] = Field(
        default=3, description="For `retry_failed`: how often a failed task is run again."
    )
    collect_errors: Flag = Field(
        default=False, description="Append the error of each task that has finally failed to `error_state_path`."
    )
    error_state_path: Annotated[Path | None, Role.PATH] = Field(
        default=None, description="A list in the state for these errors."
    )


class ParallelForEach(Fallible):
    """Runs a task for each item of a list, several at a time. A task's id is `<step id>.<index>`."""

    type: Literal["parallel_foreach"]
    items: Annotated[Items, Role.ITEMS] = Field(description="The list.")
    sub_agent_task: Name = Field(
        description="The name of a task in `sub_agent_tasks`, of this workflow or of one that it imports."
    )
    max_parallel: Annotated[PositiveCount, Role.TEMPLATE] = Field(
        default=5, description="How many tasks run at the same time."
    )
    wait_for_all: Flag = Field(
        default=True, description="false: continue when the first task is done; the run's end waits for the others."
    )
    agent: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None,
        description="The agent for tasks with steps that need one. Without this key: the setting `default_agent`.",
    )
    sub_agent_prompt_override: Annotated[Text | None, Role.PROMPT] = Field(
        default=None, description="A prompt instead of the standard prompt for sub-agents."
    )
    on_sub_agent_error: SubAgentErrors = Field(default=SubAgentErrors(), description="What to do when a task fails.")


class IncludeWorkflow(Working):
    """Runs another workflow, which has a state of its own. That state can be read afterwards under this step's id."""

    type: Literal["include_workflow"]
    workflow: Name = Field(description="The `name` of an imported workflow, else the name of a workflow file.")
    inputs: Annotated[dict[str, JsonValue], Role.VALUE] = Field(
        default={}, description="Values for its inputs, and for its `raw` fields of the same name."
    )


class Break(StepBase):
    """Leaves the innermost loop."""

    type: Literal["break"]


class Continue(StepBase):
    """Goes on with the next iteration of the innermost loop."""

    type: Literal["continue"]


Step: TypeAlias = Annotated[
    Union[  # noqa: UP007 - one type on each line reads best
        ShellCommand,
        AgentShellCommand,
        AgentStep,
        McpCall,
        StateUpdate,
        UserInput,
        UserMessage,
        ApplyHints,
        Conditional,
        While,
        ForEach,
        ParallelForEach,
        IncludeWorkflow,
        Break,
        Continue,
        Wait,
        Exit,
    ],
    Field(discriminator="type"),
]
Steps: TypeAlias = tuple[Step, ...]

for _class in (Conditional, Loop, While, ForEach):
    _class.model_rebuild()

STEP_CLASSES: dict[str, type[StepBase]] = {
    get_args(cls.model_fields["type"].annotation)[0]: cls for cls in get_args(get_args(Step)[0])
}
assert tuple(STEP_CLASSES) == STEP_TYPES


def branches(step: StepBase) -> dict[str, tuple[Step, ...]]:
    """The lists of steps inside a step, by the key that has them in the file."""
    if isinstance(step, Conditional):
        return {"then": step.then} | ({} if step.else_ is None else {"else": step.else_})
    if isinstance(step, Loop):
        return {"body": step.body} if step.body is not None else {"steps": step.inner}
    return {}
