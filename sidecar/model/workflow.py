"""What a workflow is: its inputs, its state, its steps, and what it wants when something goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator
from pydantic.json_schema import GenerateJsonSchema

from sidecar.model.language import (
    Cost,
    Count,
    Duration,
    Flag,
    Identifier,
    Import,
    Name,
    ParameterName,
    Path,
    PositiveDuration,
    Role,
    Sources,
    StrictModel,
    Text,
    has_template,
)
from sidecar.model.parameters import Declaration, Parameter, Type
from sidecar.model.steps import STEP_CLASSES, Loop, Step, StepBase, Steps, branches

FieldTypes: TypeAlias = dict[Identifier, Type]
Location: TypeAlias = tuple[int | str, ...]  # of an entry in a file: its keys and indices from the top


class Input(Declaration):
    """One input, as its workflow declares it."""


class Computed(StrictModel):
    """A field that follows from others, and is computed again whenever one of them changes."""

    from_: Annotated[Sources, Role.SOURCE] = Field(
        alias="from",
        description="The fields it is computed from. One path: its value is `input`; a list of paths: `input` is the "
        "list of their values.",
    )
    transform: Annotated[Text, Role.TRANSFORM] = Field(description="How it is computed from `input`.")
    description: str = Field(default="", description="What the field is for.")
    on_error: Literal["use_fallback", "propagate", "ignore"] = Field(
        default="propagate",
        description="If the computation fails. propagate: the update that caused it fails; use_fallback: the field "
        "gets `fallback`; ignore: it keeps its value.",
    )
    fallback: JsonValue = Field(default=None, description="The value for `use_fallback`.")
    validate_: Annotated[Text | None, Role.CHECK] = Field(
        default=None, alias="validate", description="A check of the new value, which is `output`; false is an error."
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """Every path that it follows from."""
        return (self.from_,) if isinstance(self.from_, str) else self.from_


class StateSchema(StrictModel):
    """The fields of the state."""

    raw: FieldTypes = Field(default={}, description="Fields that steps write, with their types.")
    state: FieldTypes = Field(default={}, description="More such fields, under another name.")
    computed: dict[Identifier, Computed] = Field(
        default={}, description="Fields that are computed from others, again whenever one of these changes."
    )


class DefaultState(StrictModel):
    """What the state begins with."""

    raw: Annotated[dict[str, JsonValue], Role.VALUE] = Field(default={}, description="Values of fields of `raw`.")
    state: Annotated[dict[str, JsonValue], Role.VALUE] = Field(default={}, description="Values of fields of `state`.")


class TaskErrors(StrictModel):
    """What a sub-agent task does when one of its steps failed."""

    return_on_error: Flag = Field(
        default=True, description="false: the task counts as completed in spite of the error."
    )
    cleanup_on_error: Steps | None = Field(
        default=None, description="Steps that are executed when the task fails; `error` is in scope."
    )


class SubAgentTask(StrictModel):
    """Steps that `parallel_foreach` runs once for each of its items."""

    description: str = Field(default="", description="What the task is for.")
    inputs: Annotated[dict[Identifier, JsonValue], Role.VALUE] = Field(
        default={},
        description="Names that the task's steps can use, with their values; `item` and `index` are in scope.",
    )
    steps: Steps = Field(description="The steps of the task.")
    error_handling: TaskErrors = Field(default=TaskErrors(), description="What to do when a step of the task fails.")


class ErrorCollection(StrictModel):
    """Where errors are kept."""

    enabled: Flag = Field(default=True, description="false: errors are not kept.")
    state_path: Annotated[Path, Role.PATH] = Field(
        default="raw.workflow_errors", description="A list in the state to which each error is appended."
    )
    include_stack_traces: Flag = Field(default=False, description="Keep the position in the JavaScript, too.")


class ErrorHandling(StrictModel):
    """What the run does with an error that no step took care of."""

    on_error: Literal["checkpoint_and_fail", "continue", "retry_workflow"] = Field(
        default="checkpoint_and_fail",
        description="checkpoint_and_fail: the run fails and can be resumed; continue: go on with the next step; "
        "retry_workflow: start again with the first step.",
    )
    retry_count: Annotated[Count, Role.TEMPLATE] = Field(default=3, description="For `retry_workflow`: how often.")
    retry_delay_s: Annotated[Duration, Role.TEMPLATE] = Field(
        default=1.0,
        json_schema_extra={"default": "1s"},
        alias="retry_delay",
        description="For `retry_workflow`: the pause before it.",
    )
    error_collection: ErrorCollection | None = Field(default=None, description="Keep every error in the state.")
    on_failure: Steps | None = Field(
        default=None, description="Steps that are executed when the run fails; `error` is in scope."
    )

    @property
    def collects_in(self) -> str | None:
        """The path to which errors are appended; None where they are not kept."""
        return self.error_collection.state_path if self.error_collection and self.error_collection.enabled else None


class OnResume(StrictModel):
    """How a run goes on that was interrupted."""

    retry_failed_steps: Flag = Field(
        default=True, description="Execute the failed step again; false: continue with the next one."
    )
    skip_completed_steps: Flag = Field(
        default=True, description="Always true: a completed step is never executed again."
    )
    reset_error_counts: Flag = Field(default=False, description="Start counting retries from 0 again.")

    @field_validator("skip_completed_steps")
    @classmethod
    def _done_is_done(cls, value: bool) -> bool:
        if not value:
            raise ValueError("a completed step is never executed again; start a new run instead")
        return value


class RunLimits(StrictModel):
    """Where a run ends for its own good: `LimitReached`, exit code 3. Counted across resumes."""

    max_iterations: Annotated[Count | None, Role.TEMPLATE] = Field(
        default=None, description="Iterations of all loops together."
    )
    max_duration_s: Annotated[PositiveDuration | None, Role.TEMPLATE] = Field(
        default=None, alias="max_duration", description="The time that the run is executed."
    )
    max_cost_usd: Cost | None = Field(default=None, description="What the run's agents may cost together.")
    max_transitions: Annotated[Count | None, Role.TEMPLATE] = Field(
        default=None, description="The number of executed steps."
    )


class Workflow(StrictModel):
    """A workflow, or a component that others import."""

    model_config = ConfigDict(
        title="sidecar workflow",
        json_schema_extra={"anyOf": [{"required": ["steps"]}, {"required": ["sub_agent_tasks"]}]},
    )

    name: Name | None = Field(
        default=None,
        description="The name by which importing workflows include it. On the command line a workflow has the name of"
        " its file.",
    )
    version: str = Field(default="", description="A version for people, in quotes.")
    description: str = Field(default="", description="What the workflow does; shown in lists.")
    inputs: dict[ParameterName, Input] = Field(
        default={},
        description="The values that a caller gives; `inputs.NAME` in expressions.",
    )
    imports: tuple[Import, ...] = Field(
        default=(),
        description="Workflow files that this one uses, relative to this file and inside its workflows directory.",
    )
    default_state: DefaultState = Field(default=DefaultState(), description="The state's values at the start.")
    state_schema: StateSchema = Field(
        default=StateSchema(), description="The fields of the state, and how they are computed."
    )
    steps: Steps | None = Field(default=None, description="The steps, executed in this order.")
    sub_agent_tasks: dict[Name, SubAgentTask] | None = Field(
        default=None, validate_default=True, description="Tasks for `parallel_foreach`, by name."
    )
    error_handling: ErrorHandling = Field(default=ErrorHandling(), description="What to do when a step fails.")
    on_resume: OnResume = Field(default=OnResume(), description="What to do when the run is resumed.")
    limits: RunLimits = Field(
        default=RunLimits(),
        description="Limits of the run, resumes included. A reached limit ends it with exit code 3.",
    )

    @field_validator("sub_agent_tasks")
    @classmethod
    def _does_something(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("steps", ()) is None:
            raise ValueError("`steps` is missing: there is nothing to do, and no `sub_agent_tasks` for others")
        return value

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """Its inputs with their names, in the order of the file."""
        return tuple(
            Parameter(name=name, **{key: getattr(given, key) for key in given.model_fields_set})
            for name, given in self.inputs.items()
        )

    @property
    def declared(self) -> dict[str, frozenset[str]]:
        """By section: the fields of the schema, and those that have a default."""
        schema, defaults = self.state_schema, self.default_state
        raw, state = frozenset({*schema.raw, *defaults.raw}), frozenset({*schema.state, *defaults.state})
        return {"raw": raw, "state": state, "computed": frozenset(schema.computed)}

    @property
    def raw_fields(self) -> frozenset[str]:
        """The fields of `raw` that it declares. Who includes it may give their values, as those of inputs."""
        return self.declared["raw"]


@dataclass(frozen=True, slots=True)
class PlacedSteps:
    """Steps that follow each other. `location` is without a wrapper; `in_loop`: break and continue have a target."""

    steps: Steps
    location: Location
    in_loop: bool = False


def walk(workflow: Workflow) -> Iterator[tuple[Step, Location]]:
    """Every step with its location."""
    for each in step_lists(workflow):
        for index, step in enumerate(each.steps):
            yield step, (*each.location, index)


def step_lists(workflow: Workflow) -> Iterator[PlacedSteps]:
    """Every list of steps: the workflow's own, those of its tasks, those for errors, and those inside other steps."""
    tops = [PlacedSteps(workflow.steps or (), ("steps",))]
    for name, task in (workflow.sub_agent_tasks or {}).items():
        where = ("sub_agent_tasks", name)
        cleanup = task.error_handling.cleanup_on_error or ()
        tops.append(PlacedSteps(task.steps, (*where, "steps")))
        tops.append(PlacedSteps(cleanup, (*where, "error_handling", "cleanup_on_error")))
    tops.append(PlacedSteps(workflow.error_handling.on_failure or (), ("error_handling", "on_failure")))
    for top in tops:
        yield from _with_inner(top)


def _with_inner(outer: PlacedSteps) -> Iterator[PlacedSteps]:
    yield outer
    for index, step in enumerate(outer.steps):
        for key, children in branches(step).items():
            inner = PlacedSteps(children, (*outer.location, index, key), outer.in_loop or isinstance(step, Loop))
            yield from _with_inner(inner)


def numbered(workflow: Workflow) -> Workflow:
    """The workflow with an id on every step; a step that has none gets its position in the file as its id.

    A step at the top is `<index>.<type>`: `2.while`. One inside another is `<id of that one>.<key>.<index>.<type>`:
    the first step of that loop is `2.while.body.0.shell_command`, and `fix.body.0.shell_command` where the loop has the
    id `fix`. Steps of a task begin with `tasks/<name>.`, those of the error handling with `on_failure.` and
    `tasks/<name>.cleanup_on_error.`. Ids that people give contain neither `.` nor `/`, so that no two can be equal.
    """
    return _numbered_part(workflow, "")


_Part = TypeVar("_Part", Workflow, SubAgentTask, ErrorHandling, TaskErrors)


def _numbered_part(part: _Part, prefix: str) -> _Part:
    changes: dict[str, Any] = {}
    for key in part.model_fields_set:
        value = getattr(part, key)
        if key == "error_handling":
            changes[key] = _numbered_part(value, prefix)
        elif key == "sub_agent_tasks" and value is not None:
            changes[key] = {name: _numbered_part(task, f"tasks/{name}.") for name, task in value.items()}
        elif key in ("steps", "on_failure", "cleanup_on_error") and value is not None:
            changes[key] = _numbered_steps(value, prefix if key == "steps" else f"{prefix}{key}.")
    return part.model_copy(update=changes)


def _numbered_steps(steps: tuple[Step, ...], prefix: str) -> tuple[Step, ...]:
    return tuple(_numbered_step(step, f"{prefix}{index}.{step.type}") for index, step in enumerate(steps))


def _numbered_step(step: Step, position: str) -> Step:
    changes: dict[str, Any] = {"id": step.id or position}
    for key, children in branches(step).items():
        changes["else_" if key == "else" else key] = _numbered_steps(children, f"{changes['id']}.{key}.")
    return step.model_copy(update=changes)


# These are templates: without {{ }} they are just text. The others are code, or paths, whatever they look like.
_TEMPLATES = frozenset({Role.ITEMS, Role.COMMAND, Role.MESSAGE, Role.PROMPT, Role.TEMPLATE, Role.VALUE})


@dataclass(frozen=True, slots=True)
class ExpressionSite:
    """A text with expressions."""

    location: Location  # its path in the file: ("steps", 0, "body", 2, "command")
    role: Role
    text: str
    steps: tuple[StepBase, ...] = ()  # the steps around it, outermost first; the last one has it
    depth: int = 0  # how many parts of the location lead to that step
    task: str | None = None  # the sub-agent task that it belongs to

    @property
    def step(self) -> StepBase | None:
        """The step that has it; None for the schema, the defaults and the like."""
        return self.steps[-1] if self.steps else None


def sites(workflow: Workflow) -> Iterator[ExpressionSite]:
    """All of them, in the order of the model. Locations are without a wrapper."""
    yield from _sites_in(workflow, ExpressionSite((), Role.VALUE, ""), None)


def _sites_in(value: object, around: ExpressionSite, role: Role | None) -> Iterator[ExpressionSite]:
    """Those in a part of the definition; `role` is that of the field which it is in, if that can hold expressions."""
    if isinstance(value, BaseModel):
        if isinstance(value, StepBase):
            around = replace(around, steps=(*around.steps, value), depth=len(around.location))
        for name, field in type(value).model_fields.items():
            if name in value.model_fields_set:  # a default is ours, and in no file
                inside = replace(around, location=(*around.location, field.alias or name))
                own_role = next((entry for entry in field.metadata if isinstance(entry, Role)), None)
                yield from _sites_in(getattr(value, name), inside, own_role)
    elif isinstance(value, list | tuple | dict):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            task = str(key) if isinstance(item, SubAgentTask) else around.task
            yield from _sites_in(item, replace(around, location=(*around.location, key), task=task), role)
    elif isinstance(value, str) and role is not None and (role not in _TEMPLATES or has_template(value)):
        yield replace(around, role=role, text=value)


DIALECT = GenerateJsonSchema.schema_dialect
_REFERENCE = "#/$defs/{model}"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the language, for editors, made from the models: a definition, or one below `workflow`."""
    schema = Workflow.model_json_schema(by_alias=True, ref_template=_REFERENCE)
    definitions = schema.pop("$defs")
    definitions["Workflow"] = schema
    definitions = _tidied(definitions)
    definitions["Step"] = _step_schema(definitions)
    reference = {"$ref": _REFERENCE.format(model="Workflow")}
    wrapped = {
        "type": "object",
        "properties": {"workflow": reference},
        "required": ["workflow"],
        "additionalProperties": False,
    }
    return {
        "$schema": DIALECT,
        "title": "sidecar workflow",
        "description": "A workflow of sidecar: what to do, over which state, and what to do when it fails.",
        # `if` and not `anyOf`: a checker then reports what is wrong with the one that was meant.
        "if": {"type": "object", "required": ["workflow"]},
        "then": wrapped,
        "else": reference,
        "$defs": definitions,
    }


def _step_schema(definitions: dict[str, Any]) -> dict[str, Any]:
    """Any step, by its `type`: a checker looks at that first, and then speaks of that one step only."""
    references = {name: {"$ref": _REFERENCE.format(model=cls.__name__)} for name, cls in STEP_CLASSES.items()}
    for name, cls in STEP_CLASSES.items():
        definitions[cls.__name__]["title"] = name
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"description": "What the step does.", "enum": list(references)}},
        "allOf": [
            {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": reference}
            for name, reference in references.items()
        ],
    }


def _tidied(node: Any) -> Any:
    """What pydantic makes, as people and checkers want it."""
    if isinstance(node, list):
        return [_tidied(child) for child in node]
    if not isinstance(node, dict):
        return node
    if "discriminator" in node:  # OpenAPI's word, and only steps have it
        return {"$ref": _REFERENCE.format(model="Step")}
    tidy = {key: _tidied(child) for key, child in node.items()}
    if isinstance(tidy.get("properties"), dict):  # titles that only repeat the key
        tidy["properties"] = {key: _untitled(child) for key, child in tidy["properties"].items()}
    if isinstance(tidy.get("patternProperties"), dict):
        tidy.setdefault("additionalProperties", False)  # a name that does not fit the pattern is wrong
    alternatives = tidy.get("anyOf")
    if alternatives and {"type": "null"} in alternatives:  # a key without a value is refused
        rest = [child for child in alternatives if child != {"type": "null"}]
        tidy = {key: child for key, child in tidy.items() if key != "anyOf"}
        tidy |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    if tidy.get("default", 0) is None:
        del tidy["default"]
    return tidy


def _untitled(node: Any) -> Any:
    return {key: child for key, child in node.items() if key != "title"} if isinstance(node, dict) else node
