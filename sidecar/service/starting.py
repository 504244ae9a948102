"""A run before it begins: the definition is found and checked, the inputs are bound, the journal knows of it."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.analysis import validate
from sidecar.catalog import workflows
from sidecar.engine import execution
from sidecar.errors import DefinitionError, InputError, Problem, SignalError
from sidecar.model import duration, ulid
from sidecar.model.parameters import bind
from sidecar.service import adhoc
from sidecar.signals import files, run_lock, targets
from sidecar.signals.receipts import clear_ended
from sidecar.store.journal import OPEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.catalog.workflows import Definition
    from sidecar.config import Project, Settings
    from sidecar.model.events import Driver
    from sidecar.state.script import Script
    from sidecar.store.journal import Handouts, Journal, StoredRun

WORKSPACE = "workspace"  # an input of this name is the workspace that the run is bound to


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run needs to begin."""

    definition: Definition
    inputs: dict[str, Any]
    workspace: str | None


def find(project: Project, name: str, script: Script) -> Definition:
    """A workflow by its name, checked: what can be known to fail fails here."""
    definition = workflows.find(project.root, name)
    problems = [
        Problem.at(finding.file, (finding.line, finding.column), finding.message)
        for finding in validate.check(project.root, definition, script)
        if finding.severity == "error"
    ]
    if problems:
        raise DefinitionError(problems)
    if not definition.workflow.steps:
        raise InputError(f"workflow {name!r} has no steps of its own: it is there for others to import")
    return definition


def prepare(
    project: Project, definition: Definition, given: Mapping[str, Any], workspace: str | None = None
) -> Prepared:
    """The inputs, bound; InputError says everything that is wrong with them."""
    given = dict(given)
    directory = workspace_directory(project, workspace) if workspace else None
    declared = definition.workflow.inputs
    if WORKSPACE in declared and isinstance(given.get(WORKSPACE, workspace), str):
        directory = workspace_directory(project, str(given.get(WORKSPACE, workspace)))
        given[WORKSPACE] = os.path.relpath(directory, project.root)
    kind, name = adhoc.subject(definition) or ("workflow", definition.name)
    inputs = bind(definition.workflow.parameters, given, f"{kind} {name!r}")
    return Prepared(definition, inputs, directory)


@contextmanager
def created(
    root: str,
    journal: Journal,
    prepared: Prepared,
    *,
    driver: Driver = "server",
    details: dict[str, Any] | None = None,
) -> Iterator[str]:
    """A run begins: it is pending, with the definition that it keeps for life. Its id; inside, its lock is held."""
    run_id = ulid.new()
    definition = prepared.definition
    with run_lock.begin(root, run_id, workspace=prepared.workspace, driver=driver):
        try:
            with journal.transaction():
                execution.refuse_second(journal, root, definition.name, prepared.workspace)
                journal.create(
                    run_id,
                    definition.name,
                    definition=json.dumps(definition.record()),
                    inputs=prepared.inputs,
                    workspace=prepared.workspace,
                    driver=driver,
                    details=details,
                )
        except BaseException:
            run_lock.forget(root, run_id)
            raise
        yield run_id


def create(root: str, journal: Journal, prepared: Prepared, *, details: dict[str, Any] | None = None) -> str:
    """A run begins that somebody is to execute; its id."""
    with created(root, journal, prepared, details=details) as run_id:
        return run_id


def begin_again(root: str, journal: Journal, run: StoredRun, driver: Driver) -> list[str]:
    """A run that had ended is to go on: what stands in its signal directories now is recorded, and every signal that
    comes later is for it. One that has not ended goes on as it is. The caller has its lock. What to warn of."""
    if run.status in OPEN or run.status == "completed":
        return []
    execution.refuse_second(journal, root, run.workflow, run.workspace, run.run_id)
    warnings = clear_ended(root, run.run_id)
    run_lock.begin_again(root, run.run_id, workspace=run.workspace, driver=driver)
    journal.begin_again(run.run_id)
    return warnings


def refuse_handed_out(handouts: Handouts, run: StoredRun, settings: Settings, *, take_over: bool) -> None:
    """InputError where an outside agent has a step of the run in hand, and may still be at work on it.

    What the agents of a server-driven run have in hand ended with its owner."""
    is_driven = run.driver == "agent" and run.status == "running"
    held = handouts.all_held(run.run_id) if is_driven and not take_over else []
    young = [one for one in held if handouts.age_s(one) < duration.seconds(settings.take_over_after)]
    if young:
        since = files.timestamp(young[0].handed_at)
        raise InputError(
            f"an agent has had step {young[0].key!r} of run {run.run_id} in hand since {since}; "
            f"`sidecar resume {run.run_id} --take-over` has it done again, and what that agent reports is refused"
        )


def workspace_inside(project: Project, name: str) -> str:
    """A workspace as steps name it: relative to the project's root."""
    return os.path.relpath(workspace_directory(project, name), project.root)


def workspace_directory(project: Project, name: str) -> str:
    """A workspace by its name, or a directory inside the project."""
    if layout.is_name(name):
        parent = targets.workspaces_directory(project.root, project.environment)
        if os.path.isdir(os.path.join(parent, name)) or not os.path.isdir(os.path.join(project.root, name)):
            return _named(project, name, parent)
    directory = os.path.realpath(os.path.join(project.root, name))
    inside = (directory + "/").startswith(os.path.realpath(project.root).rstrip("/") + "/")
    if not inside or not os.path.isdir(directory):
        raise InputError(f"{name!r} is neither the name of a workspace nor a directory inside the project")
    return directory


def _named(project: Project, name: str, parent: str) -> str:
    try:
        return targets.workspace(project.root, name, project.environment).directory
    except SignalError as error:
        hint = "" if os.path.isdir(os.path.join(parent, name)) else f"; to make it: sidecar workspace init {name}"
        raise InputError(f"{error}{hint}") from None
