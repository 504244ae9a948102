"""A run before it begins: the definition is found and checked, the inputs are bound, the journal knows of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.catalog import workflows
from sidecar.engine import validate
from sidecar.errors import DefinitionError, InputError, Problem, SignalError
from sidecar.model import ulid
from sidecar.model.parameters import bind
from sidecar.service import adhoc
from sidecar.signals import targets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.catalog.imports import Definition
    from sidecar.model.run import Driver
    from sidecar.service.project import Project
    from sidecar.state.script import Script
    from sidecar.store.journal import Journal

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


def create(
    journal: Journal, prepared: Prepared, *, driver: Driver = "server", details: dict[str, Any] | None = None
) -> str:
    """The run is pending, with the definition that it keeps for life; its id."""
    run_id = ulid.new()
    definition = prepared.definition
    journal.create(
        run_id,
        definition.name,
        definition=json.dumps(definition.record()),
        inputs=prepared.inputs,
        workspace=prepared.workspace,
        driver=driver,
        details=details,
    )
    return run_id


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
