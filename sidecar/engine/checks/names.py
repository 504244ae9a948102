"""Which names an expression can use: what the workflow declares or writes, and what the place around it adds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sidecar.engine.checks import walk
from sidecar.errors import ExpressionError
from sidecar.model.language import Role
from sidecar.model.steps import ApplyHints, Fallible
from sidecar.model.steps_control import ForEach, IncludeWorkflow, ParallelForEach, While
from sidecar.state.paths import PathError, compile_path
from sidecar.state.script import Expression

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator

    from sidecar.catalog.imports import Definition
    from sidecar.model.expressions import Site
    from sidecar.model.steps import StepBase
    from sidecar.model.workflow import SubAgentTask

# What every expression has. `feedback` is what `resume` brought, null before that.
EVERYWHERE = frozenset({"inputs", "now", "uuid", "feedback"})
AT_THE_START = frozenset({"inputs", "now", "uuid"})
# What only some places have, and which.
ELSEWHERE = {
    "item": "inside `foreach` and in the tasks of `parallel_foreach`",
    "index": "inside `foreach` and in the tasks of `parallel_foreach`; inside `while` it is loop.index",
    "loop": "inside `while` and `foreach`",
    "result": "in the `state_update` of a step that has a result",
    "applied_count": "in the `state_update` of `apply_hints`",
    "error": "in `error_state_update`, `on_failure` and `cleanup_on_error`",
    "input": "in the `transform` and the `validate` of a computed field",
    "output": "in the `validate` of a computed field",
}
SECTIONS = ("raw", "state", "computed")
_STEP_LISTS = frozenset({"steps", "body", "then", "else", "on_failure", "cleanup_on_error"})


@dataclass(frozen=True, slots=True)
class Names:
    """What a definition gives to its expressions wherever they stand."""

    inputs: frozenset[str]
    fields: dict[str, frozenset[str]]  # by section: declared, begun with, or written
    declared: dict[str, frozenset[str]]  # by section: those of the schema and the defaults
    included: frozenset[str]
    dynamic: bool  # some step writes a field whose name only the run knows
    tasks: dict[str, SubAgentTask] = field(default_factory=dict)
    lost: tuple[Container[str], ...] = ()  # words of what is wrong in the file: names may be declared there

    def is_lost(self, name: str) -> bool:
        """Whether nobody can say if the name is known."""
        return any(name in words for words in self.lost)

    @property
    def flat(self) -> frozenset[str]:
        """The names of the state, and of what was included."""
        return self.included.union(*self.fields.values())

    def lent(self, other: Names) -> Names:
        """With what an importer adds to the tasks that it takes from here."""
        fields = {section: self.fields[section] | other.fields[section] for section in SECTIONS}
        return replace(
            self,
            inputs=self.inputs | other.inputs,
            fields=fields,
            included=self.included | other.included,
            dynamic=self.dynamic or other.dynamic,
            lost=self.lost + other.lost,
        )


def names_of(definition: Definition) -> Names:
    """What a definition's own file gives, and the tasks that it imports write."""
    workflow = definition.workflow
    schema, begin = workflow.state_schema, workflow.default_state
    declared = {
        "raw": frozenset({*schema.raw, *begin.raw}),
        "state": frozenset({*schema.state, *begin.state}),
        "computed": frozenset(schema.computed),
    }
    written = set(_written(definition))
    fields = {
        section: declared[section] | {name for where, name in written if where == section and name is not None}
        for section in SECTIONS
    }
    return Names(
        inputs=frozenset(workflow.inputs),
        fields=fields,
        declared=declared,
        included=frozenset(step.id for step, _ in walk.steps(workflow) if isinstance(step, IncludeWorkflow)),
        dynamic=any(name is None for _, name in written),
        tasks=workflow.sub_agent_tasks or {},
        lost=lost_of(definition),
    )


def lost_of(definition: Definition) -> tuple[Container[str], ...]:
    """The words of what is wrong in a file and in what it imports."""
    return (definition.lost, *(imported.lost for imported in definition.imports.values()))


def target(text: str) -> tuple[str, str | None] | None:
    """The section and the field that a path writes; no field where only the run knows it; None for no path."""
    try:
        first, second = compile_path(text, lambda source: Expression(source, (), (), "", 0)).segments[:2]
    except (PathError, ExpressionError):  # told where expressions are checked
        return None
    section = "" if isinstance(first, int) else first.text
    return section, None if isinstance(second, int) or second.slots else second.text


def _written(definition: Definition) -> Iterator[tuple[str, str | None]]:
    sites = [site for site in definition.sites() if site.role is Role.PATH]
    for imported in definition.imports.values():
        sites += [site for site in imported.sites() if site.role is Role.PATH and site.task is not None]
    for site in sites:
        found = target(site.text)
        if found is not None:
            yield found
    collection = definition.workflow.error_handling.error_collection
    if collection is not None and collection.enabled:
        found = target(collection.state_path)
        if found is not None:
            yield found


def visible(site: Site, names: Names, prefix: int) -> Collection[str]:
    """Every name that an expression at a site can use; `prefix`: how much of its location is the wrapper."""
    location = site.location[prefix:]
    if location[0] == "default_state":
        return AT_THE_START
    return names.flat | EVERYWHERE | set(_around(site, location, names)) | set(_own(site, location))


def _around(site: Site, location: tuple[int | str, ...], names: Names) -> Iterator[str]:
    """What the loops, the task and the error handling around it add."""
    for step in site.steps[:-1]:
        yield from _of_loop(step)
    if site.task is not None:
        yield from ("item", "index")
        if location[2] != "inputs" and site.task in names.tasks:
            yield from names.tasks[site.task].inputs
    handling = location[2:4] if site.task is not None else location[:2]
    if site.steps and handling in (("error_handling", "on_failure"), ("error_handling", "cleanup_on_error")):
        yield "error"


def _of_loop(step: StepBase) -> Iterator[str]:
    if isinstance(step, ForEach):
        yield from ("item", "index", "loop")
    elif isinstance(step, While):
        yield "loop"


def _own(site: Site, location: tuple[int | str, ...]) -> Iterator[str]:
    """What the key adds that it stands under."""
    if site.role in (Role.TRANSFORM, Role.CHECK):
        yield "input"
    if site.role is Role.CHECK:
        yield "output"
    key = _key(location, len(site.steps))
    if key == "state_update" and isinstance(site.step, Fallible):
        yield "result"
        if isinstance(site.step, ApplyHints):
            yield "applied_count"
    elif key == "error_state_update":
        yield "error"
    elif key == "sub_agent_prompt_override" and isinstance(site.step, ParallelForEach):
        yield from ("item", "index", "task_id", "workflow_id", "description")
    elif key == "condition" and isinstance(site.step, While):
        yield "loop"


def _key(location: tuple[int | str, ...], depth: int) -> str:
    """The key of the innermost step that leads to a site; empty outside of steps."""
    for at, part in enumerate(location):
        if depth == 0:
            break
        if part in _STEP_LISTS and at + 2 < len(location) and isinstance(location[at + 1], int):
            depth -= 1
            if depth == 0:
                return str(location[at + 2])
    return ""
