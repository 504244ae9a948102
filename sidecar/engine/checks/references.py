"""Names of other things that a workflow relies on: its tasks, other workflows, agents and prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.catalog import agents, prompts, workflows
from sidecar.engine import findings
from sidecar.engine.checks import walk
from sidecar.engine.checks.names import lost_of
from sidecar.errors import DefinitionError, NotFound, SidecarError
from sidecar.model.language import has_template
from sidecar.model.parameters import misfit, unknown
from sidecar.model.steps import AgentStep, ApplyHints
from sidecar.model.steps_control import IncludeWorkflow, ParallelForEach

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sidecar.catalog.agents import Agent
    from sidecar.catalog.imports import Definition
    from sidecar.engine.checks.walk import Location
    from sidecar.engine.findings import Notes
    from sidecar.model.parameters import Parameter


class References:
    """The check for one project; what was looked up once is remembered."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._agents: dict[str, str | Agent] = {}
        self._workflows: dict[tuple[str, str], Definition | str] = {}

    def check(self, definition: Definition, notes: Notes) -> None:
        """Note everything that a file names and that is not there."""
        for step, where in walk.steps(definition.workflow):
            if isinstance(step, ParallelForEach) and not _is_known(step.sub_agent_task, definition):
                message = unknown(step.sub_agent_task, definition.tasks, "sub-agent task")
                notes.error((*where, "sub_agent_task"), message)
            if isinstance(step, IncludeWorkflow):
                self._include(definition, step, where, notes)
            if isinstance(step, AgentStep | ApplyHints | ParallelForEach):
                self._agent(step.agent, where, notes)
            if isinstance(step, AgentStep) and step.prompt_name is not None:
                self._prompt(step, step.prompt_name, where, notes)

    def _agent(self, name: str | None, where: Location, notes: Notes) -> None:
        if name is None or has_template(name):
            return
        if name not in self._agents:
            try:
                self._agents[name] = agents.find(self.root, name)
            except SidecarError as error:
                self._agents[name] = _told(error)
        found = self._agents[name]
        if isinstance(found, str):
            notes.error((*where, "agent"), found)
        else:
            notes.found += [findings.of_problem(doubt, "warning") for doubt in agents.doubts(found)]

    def _prompt(self, step: AgentStep, name: str, where: Location, notes: Notes) -> None:
        try:
            prompt = prompts.find(self.root, name)
        except SidecarError as error:
            notes.error((*where, "prompt_name"), _told(error))
            return
        _arguments(prompt.parameters, step.parameters, (*where, "parameters"), f"prompt {name!r}", notes)

    def _include(self, definition: Definition, step: IncludeWorkflow, where: Location, notes: Notes) -> None:
        found = self._included(definition, step.workflow)
        if isinstance(found, str) and any(step.workflow in words for words in lost_of(definition)):
            return
        if isinstance(found, str):
            notes.error((*where, "workflow"), found)
            return
        circle = self._circle(definition, found, (definition.loaded_from,))
        if circle is not None:
            notes.error((*where, "workflow"), f"workflows include each other: {' → '.join([definition.name, *circle])}")
        place, subject, fields = (*where, "inputs"), f"workflow {step.workflow!r}", found.workflow.raw_fields
        _arguments(found.workflow.parameters, step.inputs, place, subject, notes, fields=fields)
        if found.workflow.error_handling.on_error == "retry_workflow":
            message = (
                f"`retry_workflow` of {step.workflow!r} holds for a run of its own only: use `on_error: retry` here"
            )
            notes.warning((*where, "workflow"), message)
        limits = sorted(found.workflow.limits.model_fields_set)
        if limits:
            told = ", ".join(f"`{name.removesuffix('_s')}`" for name in limits)
            message = (
                f"{told} of {step.workflow!r} hold for a run of its own only: put what is to hold into `limits` here"
            )
            notes.warning((*where, "workflow"), message)

    def _included(self, includer: Definition, name: str) -> Definition | str:
        key = (includer.loaded_from, name)
        if key not in self._workflows:
            try:
                found = workflows.included(self.root, includer, name)
            except SidecarError as error:
                self._workflows[key] = _told(error)
            else:
                runs = found.workflow.steps is not None
                self._workflows[key] = found if runs else f"{name!r} has no steps: it cannot be included"
        return self._workflows[key]

    def _circle(self, first: Definition, at: Definition, chain: tuple[str, ...]) -> list[str] | None:
        """The names on the way back to the first workflow, where inclusion leads there."""
        if at.loaded_from == first.loaded_from:
            return [at.name]
        if at.loaded_from in chain:
            return None  # a circle, but one that the first is not part of: it is told there
        for step, _ in walk.steps(at.workflow):
            following = self._included(at, step.workflow) if isinstance(step, IncludeWorkflow) else ""
            if isinstance(following, str):
                continue
            rest = self._circle(first, following, (*chain, at.loaded_from))
            if rest is not None:
                return [at.name, *rest]
        return None


def _is_known(task: str, definition: Definition) -> bool:
    return task in definition.tasks or any(task in words for words in lost_of(definition))


def _told(error: SidecarError) -> str:
    if isinstance(error, DefinitionError):
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        return f"it has problems itself: {error.problems[0]}{more}"
    return str(error).partition("; looked in ")[0] if isinstance(error, NotFound) else str(error)


def _arguments(
    declared: Sequence[Parameter],
    given: Mapping[str, object],
    where: Location,
    subject: str,
    notes: Notes,
    *,
    fields: Collection[str] = (),
) -> None:
    """What is given to something that declares its parameters; templates are known to the run only. `fields` can be
    given, too."""
    parameters = {parameter.name: parameter for parameter in declared}
    for name, value in given.items():
        if name not in parameters:
            if name not in fields:
                notes.error((*where, name), f"{subject}: {unknown(name, [*parameters, *fields], 'input')}")
        elif not has_template(value):
            problem = misfit(value, parameters[name])
            if problem is not None:
                notes.error((*where, name), f"{subject}: {name!r} {problem}")
    for parameter in declared:
        if parameter.is_required and parameter.default is None and parameter.name not in given:
            notes.error(where, f"{subject}: {parameter.name!r} is required")
