"""What there is to see of a workflow, whoever draws it: its steps as they stand inside each other, and its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sidecar.model.steps import AgentStep, Exit, Fallible, ShellCommand, StateUpdate, UserMessage, Wait, Working
from sidecar.model.steps_control import Conditional, ForEach, IncludeWorkflow, ParallelForEach, While, branches
from sidecar.state.paths import PathError, parse, show
from sidecar.state.reactive import DependencyError, Graph
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.catalog.imports import Definition
    from sidecar.model.steps_control import Step

Kind = Literal["step", "choice", "loop", "parallel", "include", "end", "break", "continue"]
_KINDS: dict[str, Kind] = {
    "conditional": "choice",
    "while": "loop",
    "foreach": "loop",
    "parallel_foreach": "parallel",
    "include_workflow": "include",
    "exit": "end",
    "break": "break",
    "continue": "continue",
}


@dataclass(frozen=True, slots=True)
class Box:
    """One step. `branches` are the steps inside it, each list with the word for when it runs."""

    kind: Kind
    title: str  # its id, or its type where it has none
    note: str  # its type, where the title is its id
    detail: str  # what it decides by, repeats over, or does
    writes: tuple[str, ...]
    branches: tuple[tuple[str, tuple[Box, ...]], ...] = ()
    task: str | None = None  # the title of the section that it runs for each item


@dataclass(frozen=True, slots=True)
class Section:
    """A list of steps that begins by itself: the workflow's, a task's, the ones for errors."""

    title: str
    boxes: tuple[Box, ...]
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A computed field and the paths that it follows from."""

    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it. Fields stand in the order in which they are computed."""

    title: str
    description: str
    sections: tuple[Section, ...]
    fields: tuple[Field, ...]


def picture(definition: Definition) -> Picture:
    """What there is to see of a definition, the tasks that it imports included."""
    workflow = definition.workflow
    sections = [Section("steps", _boxes(workflow.steps or ()))]
    for name, task in definition.tasks.items():
        sections.append(Section(f"task {name}", _boxes(task.steps), name))
        sections.append(Section(f"task {name}: on error", _boxes(task.error_handling.cleanup_on_error or ())))
    sections.append(Section("on failure", _boxes(workflow.error_handling.on_failure or ())))
    computed = {name: field.sources for name, field in workflow.state_schema.computed.items()}
    try:
        order = list(Graph(computed).order)
    except DependencyError:  # a picture helps to see what is wrong
        order = list(computed)
    fields = tuple(Field(f"computed.{name}", tuple(dict.fromkeys(map(_whole, computed[name])))) for name in order)
    drawn = tuple(section for section in sections if section.boxes)
    return Picture(one_line(definition.name), one_line(workflow.description, 100), drawn, fields)


def _whole(source: str) -> str:
    """The field that a path leads into."""
    try:
        return one_line(show(parse(source)[:2]))
    except PathError:
        return one_line(source)


def _boxes(steps: tuple[Step, ...]) -> tuple[Box, ...]:
    return tuple(map(_box, steps))


def _box(step: Step) -> Box:
    named = "." not in step.id  # else it is its position
    words = {"then": "yes", "else": "no", "body": "each", "steps": "each"}
    return Box(
        kind=_KINDS.get(step.type, "step"),
        title=step.id if named else step.type,
        note=step.type if named else "",
        detail=one_line(_detail(step)),
        writes=tuple(dict.fromkeys(one_line(path) for path in _writes(step))),
        branches=tuple((words[key], _boxes(children)) for key, children in branches(step).items()),
        task=step.sub_agent_task if isinstance(step, ParallelForEach) else None,
    )


def _detail(step: Step) -> str:
    if isinstance(step, Conditional | While):
        return _bare(str(step.condition))
    if isinstance(step, ForEach | ParallelForEach):
        return f"item of {_bare(str(step.items))}"
    if isinstance(step, IncludeWorkflow):
        return step.workflow
    if isinstance(step, ShellCommand):
        return step.command if isinstance(step.command, str) else " ".join(step.command)
    if isinstance(step, UserMessage | Exit):
        return step.message
    if isinstance(step, AgentStep):
        return step.description or (f"prompt {step.prompt_name}" if step.prompt_name else str(step.prompt))
    if isinstance(step, Wait):
        return f"until {_bare(str(step.until))}" if step.until is not None else ""
    return step.description


def _bare(expression: str) -> str:
    """An expression without the braces around it."""
    text = expression.strip()
    inner = text.removeprefix("{{").removesuffix("}}")
    return inner.strip() if len(inner) == len(text) - 4 and "{{" not in inner else text


def _writes(step: Step) -> Iterator[str]:
    if isinstance(step, StateUpdate):
        for update in step.writes:
            yield update.path
    if isinstance(step, Working) and step.state_update is not None:
        yield step.state_update.path
    if isinstance(step, Fallible) and step.error_state_update is not None:
        yield step.error_state_update.path
    if isinstance(step, ParallelForEach) and step.on_sub_agent_error.error_state_path is not None:
        yield step.on_sub_agent_error.error_state_path
