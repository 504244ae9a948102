"""The steps that decide what runs next, and the union of all steps, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, Union, get_args

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from sidecar.model.language import Condition, Count, Flag, Items, Name, Path, PositiveCount, Role, Strictly, Text
from sidecar.model.steps import (
    AgentShellCommand,
    AgentStep,
    ApplyHints,
    Exit,
    Fallible,
    McpCall,
    ShellCommand,
    StateUpdate,
    StepBase,
    UserInput,
    UserMessage,
    Wait,
    Working,
    exactly_one,
    one_of,
)

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


class SubAgentErrors(Strictly):
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


def branches(step: StepBase) -> dict[str, tuple[Step, ...]]:
    """The lists of steps inside a step, by the key that has them in the file."""
    if isinstance(step, Conditional):
        return {"then": step.then} | ({} if step.else_ is None else {"else": step.else_})
    if isinstance(step, Loop):
        return {"body": step.body} if step.body is not None else {"steps": step.inner}
    return {}
