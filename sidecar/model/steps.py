"""The steps of the workflow language: one class per type, with every key that a step of the type can have."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal, TypeAlias, Union, get_args

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator

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
OPERATION_TEXT = "set, append to a list, increment a number, merge into an object."
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

    path: Annotated[Path, Role.PATH] = Field(description="Where to: below `raw.` or `state.`.")
    operation: Operation = Field(default="set", description=OPERATION_TEXT)
    value: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="What to write. Without it: the step's result; for `increment` 1."
    )

    @property
    def has_value(self) -> bool:
        """Whether the author gave a value. `null` is one."""
        return "value" in self.model_fields_set


class FullUpdate(Update):
    """A write that stands alone: there is no result that could be meant."""

    model_config = ConfigDict(json_schema_extra=NEEDS_VALUE)

    @model_validator(mode="after")
    def _says_what(self) -> FullUpdate:
        if self.operation != "increment" and not self.has_value:
            raise ValueError(VALUE_IS_MISSING)
        return self


# Steps that do something


OutputFormat = Literal["lines", "json", "text", "key_value"]


def exactly_one(value: object, info: ValidationInfo, other: str) -> None:
    """ValueError unless one of two keys is given. Called for the second, with the first already checked."""
    if other not in info.data:  # wrong itself, and reported
        return
    if value is None and info.data[other] is None:
        raise ValueError(f"is missing, and so is `{other}`: one of them is needed")
    if value is not None and info.data[other] is not None:
        raise ValueError(f"stands beside `{other}`: only one of them can hold")


def one_of(*keys: str) -> dict[str, JsonValue]:
    """The same rule for JSON Schema."""
    return {"oneOf": [{"required": [key]} for key in keys]}


class StepBase(StrictModel):
    """What every step has."""

    id: Name = Field(
        default="", description="Its name, unique in the workflow. Without one it is known by its position."
    )
    description: str = Field(default="", description="What it is for; shown while it runs.")


class Fallible(StepBase):
    """What every step has that can fail by itself."""

    on_error: Literal["fail", "continue", "retry"] = Field(
        default="fail", description="fail: the error goes up; continue: the next step; retry: again, then as `fail`."
    )
    retry_count: Annotated[Count, Role.TEMPLATE] = Field(default=3, description="How many times again, for `retry`.")
    retry_delay_s: Annotated[Duration, Role.TEMPLATE] = Field(
        default=1.0,
        json_schema_extra={"default": "1s"},
        alias="retry_delay",
        description="Wait before the next attempt: milliseconds, or 30s, 5m, 2h.",
    )
    retry_backoff: Literal["constant", "exponential"] = Field(
        default="constant", description="exponential: each wait is twice the one before."
    )
    fallback_value: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="The result where there is none: after an error with `continue`, or the last `retry`."
    )
    error_state_update: Update | None = Field(
        default=None, description="A write for the error; `error` is in its scope."
    )

    @property
    def has_fallback(self) -> bool:
        """Whether the author gave a fallback. `null` is one."""
        return "fallback_value" in self.model_fields_set


class Working(Fallible):
    """What every step has that yields a result and can take long."""

    timeout_s: Annotated[PositiveDuration | None, Role.TEMPLATE] = Field(
        default=None, alias="timeout", description="At most this long: milliseconds, or 30s, 5m, 2h."
    )
    state_update: Update | None = Field(
        default=None, description="A write of the result, which is `result` in its scope."
    )


class RunsSomewhere(Working):
    """What every step has that starts a process."""

    working_dir: Annotated[Word | None, Role.TEMPLATE] = Field(
        default=None, description="Where to run: relative to the project's root, and inside it."
    )
    env: Annotated[dict[VariableName, Word], Role.VALUE] = Field(default={}, description="Variables for the process.")
    output_format: OutputFormat = Field(
        default="text", description="What the result is: text, a list of lines, JSON, or key=value lines as an object."
    )


class ShellCommand(RunsSomewhere):
    """A command that sidecar runs itself, with `sh`. What `{{ }}` puts into it never becomes code."""

    type: Literal["shell_command"]
    command: Annotated[Command, Role.COMMAND] = Field(
        description="A text for the shell; or a list, a program and its arguments, which no shell reads."
    )


class AgentShellCommand(RunsSomewhere):
    """A command that needs a person's terminal or an agent's permissions."""

    type: Literal["agent_shell_command"]
    command: Annotated[Command, Role.COMMAND] = Field(
        description="A text for the shell; or a list, a program and its arguments, which no shell reads."
    )
    reason: Annotated[str, Role.MESSAGE] = Field(default="", description="Why sidecar cannot run it by itself.")


class AgentStep(RunsSomewhere):
    """A prompt for an agent: a text, or one of the prompts by name."""

    model_config = ConfigDict(title="Agent", json_schema_extra=one_of("prompt", "prompt_name"))

    type: Literal["agent"]
    agent: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None, description="Which agent; without it the setting `default_agent`."
    )
    prompt: Annotated[Text | None, Role.PROMPT] = Field(default=None, description="What the agent is to do.")
    prompt_name: Name | None = Field(
        default=None, validate_default=True, description="A prompt by its name, in place of `prompt`."
    )
    parameters: Annotated[dict[str, JsonValue], Role.VALUE] = Field(
        default={}, description="For the prompt by name; with `prompt`, what the agent's definition asks for besides."
    )

    @field_validator("prompt_name")
    @classmethod
    def _prompt_or_name(cls, value: str | None, info: ValidationInfo) -> str | None:
        exactly_one(value, info, "prompt")
        return value


class McpTool(StrictModel):
    """A tool of an MCP server."""

    server: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None, description="Which server of `.mcp.json` or the settings; without it, the one that has the tool."
    )
    method: Annotated[Text, Role.TEMPLATE] = Field(description="The tool's name.")
    params: Annotated[dict[str, JsonValue], Role.VALUE] = Field(default={}, description="Its arguments.")


class McpCall(Working):
    """A call of an MCP tool."""

    type: Literal["mcp_call"]
    mcp: McpTool = Field(description="Which tool, with what.")


class StateUpdate(Fallible):
    """Writes into the state: one, or several that hold together or not at all."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["path"], "properties": {"updates": False}, **NEEDS_VALUE},
                {"required": ["updates"], "properties": {"path": False, "value": False, "operation": False}},
            ]
        }
    )

    type: Literal["state_update"]
    path: Annotated[Path | None, Role.PATH] = Field(default=None, description="Where to: below `raw.` or `state.`.")
    operation: Operation = Field(default="set", description=OPERATION_TEXT)
    value: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="What to write; for `increment` 1 if absent."
    )
    updates: Annotated[tuple[FullUpdate, ...] | None, Field(min_length=1)] = Field(
        default=None, validate_default=True, description="Several writes in one transaction, in place of `path`."
    )

    @field_validator("updates")
    @classmethod
    def _path_or_updates(cls, value: tuple[FullUpdate, ...] | None, info: ValidationInfo) -> object:
        exactly_one(value, info, "path")
        return value

    @model_validator(mode="after")
    def _says_what(self) -> StateUpdate:
        given = self.model_fields_set & {"value", "operation"}
        if self.updates is not None and given:
            raise ValueError(f"`{min(given)}` stands beside `updates`: put it into each of them")
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

    pattern: Annotated[str, Role.PATTERN] = Field(description="A regular expression (JavaScript's) that it matches.")
    error_message: Annotated[str, Role.MESSAGE] = Field(default="", description="What to say where it does not.")


class UserInput(Working):
    """A question to the person, and the answer as its result."""

    type: Literal["user_input"]
    prompt: Annotated[Text, Role.MESSAGE] = Field(description="The question.")
    validation: InputValidation | None = Field(default=None, description="What the answer has to look like.")
    answer_type: Type = Field(default="string", description="What the answer is read as.")
    choices: Annotated[tuple[JsonValue, ...], Field(min_length=1)] | None = Field(
        default=None, description="The only answers."
    )
    default: Annotated[JsonValue, Role.VALUE] = Field(
        default=None, description="The answer where the person just agrees."
    )

    @model_validator(mode="after")
    def _default_is_a_choice(self) -> UserInput:
        fixed = self.default is not None and not has_template(self.default)
        if fixed and self.choices is not None and self.default not in self.choices:
            raise ValueError(f"`default` is {self.default!r}, which is none of its `choices`")
        return self


class UserMessage(Fallible):
    """A message to the person."""

    type: Literal["user_message"]
    message: Annotated[Text, Role.MESSAGE] = Field(description="What to say.")


class ApplyHints(Working):
    """An agent applies hints to a file; `applied_count` is in the scope of `state_update`."""

    type: Literal["apply_hints"]
    file: Annotated[Text, Role.TEMPLATE] = Field(description="The file.")
    hints: Annotated[JsonValue, Role.VALUE] = Field(description="What to apply to it.")
    agent: Annotated[Text | None, Role.TEMPLATE] = Field(default=None, description="Which agent; else `default_agent`.")


class Wait(Fallible):
    """A pause: for a time, or until a condition holds."""

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
        default=None, alias="duration", description="How long: milliseconds, or 30s, 5m, 2h."
    )
    until: Annotated[Condition | None, Role.CONDITION] = Field(
        default=None, validate_default=True, description="Wait until this holds, in place of `duration`."
    )
    interval_s: Annotated[PositiveDuration, Role.TEMPLATE] = Field(
        default=1.0, json_schema_extra={"default": "1s"}, alias="interval", description="How often to look at `until`."
    )
    timeout_s: Annotated[PositiveDuration | None, Role.TEMPLATE] = Field(
        default=None, alias="timeout", description="The step fails when `until` has not held for so long."
    )

    @field_validator("until")
    @classmethod
    def _duration_or_until(cls, value: str | bool | None, info: ValidationInfo) -> str | bool | None:
        if value is None and info.data.get("duration_s", 0) is None:
            raise ValueError("is missing, and so is `duration`: one of them is needed")
        if value is not None and info.data.get("duration_s") is not None:
            raise ValueError("stands beside `duration`: only one of them can hold")
        return value

    @model_validator(mode="after")
    def _looks_have_a_condition(self) -> Wait:
        if self.until is None and self.model_fields_set & {"interval_s", "timeout_s"}:
            raise ValueError("`interval` and `timeout` belong to `until`; a `duration` needs neither")
        return self


class Exit(StepBase):
    """The end of the run, whatever stands around it."""

    type: Literal["exit"]
    status: Literal["success", "failed"] = Field(default="success", description="How the run ends.")
    message: Annotated[str, Role.MESSAGE] = Field(default="", description="What to say then.")


# Steps that decide what runs next


DEFAULT_MAX_ITERATIONS = 100


class Conditional(StepBase):
    """One of two lists of steps."""

    type: Literal["conditional"]
    condition: Annotated[Condition, Role.CONDITION] = Field(description="Which of the two.")
    then: Steps = Field(description="The steps where it holds.")
    else_: Steps | None = Field(default=None, alias="else", description="The steps where it does not.")


class Loop(StepBase):
    """What both loops have: their steps, called `body` or `steps`."""

    body: Steps | None = Field(default=None, description="The steps of each iteration.")
    steps: Steps | None = Field(default=None, validate_default=True, description="Another word for `body`.")

    @field_validator("steps")
    @classmethod
    def _body_or_steps(cls, value: tuple[Step, ...] | None, info: ValidationInfo) -> tuple[Step, ...] | None:
        exactly_one(value, info, "body")
        return value

    @property
    def inner(self) -> tuple[Step, ...]:
        """The steps of an iteration, whichever word the author chose."""
        return self.body if self.body is not None else self.steps or ()


class While(Loop):
    """Steps again and again, while a condition holds. `loop` in their scope counts: `loop.index`, from 0."""

    model_config = ConfigDict(json_schema_extra=one_of("body", "steps"))

    type: Literal["while"]
    condition: Annotated[Condition, Role.CONDITION] = Field(description="Looked at before each iteration.")
    max_iterations: Annotated[PositiveCount, Role.TEMPLATE] = Field(
        default=DEFAULT_MAX_ITERATIONS,
        description="The run ends with `LimitReached` where the condition still holds then.",
    )


class ForEach(Loop):
    """Steps for each item of a list, one after the other; `item` and `index` are in their scope."""

    model_config = ConfigDict(json_schema_extra=one_of("body", "steps"))

    type: Literal["foreach"]
    items: Annotated[Items, Role.ITEMS] = Field(description="The list.")


class SubAgentErrors(StrictModel):
    """What becomes of a step whose task failed."""

    strategy: Literal["retry_failed", "continue", "fail_all"] = Field(
        default="fail_all", description="The failed again; on without them; or end the others and fail."
    )
    max_retries: Annotated[Count, Role.TEMPLATE] = Field(
        default=3, description="How many times again, for `retry_failed`."
    )
    collect_errors: Flag = Field(default=False, description="Keep the errors in the state.")
    error_state_path: Annotated[Path | None, Role.PATH] = Field(default=None, description="Where they go.")


class ParallelForEach(Fallible):
    """A sub-agent task for each item of a list, several at a time. A task's id is `<step id>.<index>`."""

    type: Literal["parallel_foreach"]
    items: Annotated[Items, Role.ITEMS] = Field(description="The list.")
    sub_agent_task: Name = Field(description="Which of `sub_agent_tasks`, of this workflow or one that it imports.")
    max_parallel: Annotated[PositiveCount, Role.TEMPLATE] = Field(default=5, description="How many at a time.")
    wait_for_all: Flag = Field(
        default=True, description="false: go on when the first is done; the run's end waits for all."
    )
    agent: Annotated[Text | None, Role.TEMPLATE] = Field(
        default=None, description="Which agent does the tasks that need one."
    )
    sub_agent_prompt_override: Annotated[Text | None, Role.PROMPT] = Field(
        default=None, description="In place of the standard prompt for sub-agents."
    )
    on_sub_agent_error: SubAgentErrors = Field(default=SubAgentErrors(), description="What to do when a task fails.")


class IncludeWorkflow(Working):
    """Another workflow, with a state of its own; afterwards it can be read under this step's id."""

    type: Literal["include_workflow"]
    workflow: Name = Field(description="The `name` of one that is imported, else a workflow by its name.")
    inputs: Annotated[dict[str, JsonValue], Role.VALUE] = Field(
        default={}, description="Its inputs; they also set its `raw` fields of the same names."
    )


class Break(StepBase):
    """The end of the innermost loop."""

    type: Literal["break"]


class Continue(StepBase):
    """The next iteration of the innermost loop."""

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
