"""Which fields the steps of a definition write, and which texts they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.checks.names import target
from sidecar.engine.plan.known import INCLUDED, Written
from sidecar.engine.step import of_task
from sidecar.model.language import Role
from sidecar.model.steps_control import IncludeWorkflow, ParallelForEach, branches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sidecar.catalog.imports import Definition
    from sidecar.model.expressions import Site
    from sidecar.model.steps import StepBase


class Writes:
    """The texts of a definition, and of the tasks that it imports, by the step that has them."""

    def __init__(self, definition: Definition) -> None:
        self._tasks = definition.tasks
        # By identity: a step of an imported task may have the id of one of our own.
        self._sites: dict[int, list[Site]] = {}
        for file in (definition, *definition.imports.values()):
            for site in file.sites():
                if site.step is not None:
                    self._sites.setdefault(id(site.step), []).append(site)

    def sites(self, step: StepBase) -> list[Site]:
        """The texts of a step, without those of the steps inside it."""
        return self._sites.get(id(step), [])

    def of(self, steps: Iterable[StepBase], inside: tuple[str, ...] = ()) -> Iterator[Written]:
        """What steps write, and those inside them; `inside`: the tasks that were looked into already."""
        for step in steps:
            yield from self.of_one(step)
            for children in branches(step).values():
                yield from self.of(children, inside)
            if isinstance(step, ParallelForEach):
                yield from self.of_task(step.sub_agent_task, inside)

    def of_task(self, name: str, inside: tuple[str, ...] = ()) -> Iterator[Written]:
        """What the steps of a task write, those for its errors too."""
        task = self._tasks.get(name)
        if task is not None and name not in inside:
            yield from self.of(of_task(task), (*inside, name))

    def of_one(self, step: StepBase) -> Iterator[Written]:
        """What a step itself writes: what it says, and what an included workflow leaves under its id."""
        for site in self.sites(step):
            found = target(site.text) if site.role is Role.PATH else None
            if found is not None:
                yield Written(found[0], found[1], step.id)
        if isinstance(step, IncludeWorkflow):
            yield Written(INCLUDED, step.id, step.id)
