"""Which steps an agent has to do, and whether there is one among the steps of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.errors import SidecarError
from sidecar.model.steps import AgentShellCommand, AgentStep, ApplyHints, McpCall, UserInput, UserMessage
from sidecar.model.steps_control import IncludeWorkflow, ParallelForEach, branches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sidecar.catalog.imports import Definition
    from sidecar.model.run import Driver
    from sidecar.model.steps import StepBase
    from sidecar.model.steps_control import Steps
    from sidecar.model.workflow import SubAgentTask

    # The workflow that a name means to `include_workflow` in a definition; None stands for the one that is asked about.
    Includes = Callable[[Definition | None, str], Definition]

_BY_DRIVER: dict[Driver, tuple[type[StepBase], ...]] = {
    "server": (AgentStep, ApplyHints),
    "agent": (AgentStep, ApplyHints, AgentShellCommand, McpCall, UserInput, UserMessage),
}


def is_for_agent(step: StepBase, driver: Driver) -> bool:
    """Whether the step itself is for the agent that drives the run, or does its task. Steps that hold others never are:
    `needs_agent` looks into them. One that names its agent is for that one, where the sidecar starts the agents."""
    return isinstance(step, _BY_DRIVER[driver]) and not (driver == "server" and has_own_agent(step))


def has_own_agent(step: StepBase) -> bool:
    """Whether the step says which agent does it."""
    return isinstance(step, AgentStep | ApplyHints) and step.agent is not None


def needs_agent(steps: Steps, tasks: Mapping[str, SubAgentTask], includes: Includes, driver: Driver) -> bool:
    """Whether a step for an agent is among these, or inside them, whichever way the run will take.

    `tasks` are those that `parallel_foreach` finds in the definition of the steps.
    """
    return _Search(includes, driver, set()).finds(steps, _Place(None, tasks))


def of_task(task: SubAgentTask) -> Steps:
    """All the steps of a task, those for its errors too: whoever does the task does them."""
    return (*task.steps, *(task.error_handling.cleanup_on_error or ()))


@dataclass(frozen=True, slots=True)
class _Place:
    """The definition that steps stand in; None: the first."""

    definition: Definition | None
    tasks: Mapping[str, SubAgentTask]

    @property
    def name(self) -> str:
        return "" if self.definition is None else self.definition.loaded_from


@dataclass(frozen=True, slots=True)
class _Search:
    includes: Includes
    driver: Driver
    seen: set[tuple[str, str]]  # tasks and workflows, which can lead to themselves

    def finds(self, steps: Steps, place: _Place) -> bool:
        return any(self._in_step(step, place) for step in steps)

    def _in_step(self, step: StepBase, place: _Place) -> bool:
        if is_for_agent(step, self.driver):
            return True
        if isinstance(step, ParallelForEach):
            return self._in_task(step.sub_agent_task, place)
        if isinstance(step, IncludeWorkflow):
            return self._in_included(step.workflow, place)
        return any(self.finds(children, place) for children in branches(step).values())

    def _in_task(self, name: str, place: _Place) -> bool:
        task = place.tasks.get(name)
        if task is None or not self._is_new(place.name, name):
            return False
        return self.finds(of_task(task), place)

    def _in_included(self, name: str, place: _Place) -> bool:
        try:
            found = self.includes(place.definition, name)
        except SidecarError:
            return False  # the step fails when its turn comes, and no agent can help it
        if not self._is_new(found.loaded_from, ""):
            return False
        return self.finds(found.workflow.steps or (), _Place(found, found.tasks))

    def _is_new(self, where: str, name: str) -> bool:
        known = (where, name) in self.seen
        self.seen.add((where, name))
        return not known
