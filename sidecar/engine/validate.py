"""Whether workflows can work: everything that is wrong with them at once, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar.catalog import remains, yaml_format
from sidecar.catalog.imports import Definition
from sidecar.engine import findings, named
from sidecar.engine.checks import fields, flow, loose, walk
from sidecar.engine.checks.expressions import Expressions
from sidecar.engine.checks.names import names_of
from sidecar.engine.checks.references import References
from sidecar.engine.findings import Finding, Notes
from sidecar.errors import DefinitionError
from sidecar.model.steps_control import ParallelForEach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.state.script import Script


def check_all(root: str, places: Sequence[named.Named], script: Script) -> list[Finding]:
    """The findings of several workflows and of what they import, file by file."""
    found: list[Finding] = []
    loaded: list[Definition] = []
    for place in places:
        try:
            loaded.append(place.load())
        except DefinitionError as error:
            found += map(findings.of_problem, error.problems)
            for path in dict.fromkeys(problem.path for problem in error.problems):
                others = [*loose.check(path, script), *_check_remains(path)]
                found += [new for new in others if not _is_told(new, found)]
    imported = {path for definition in loaded for path in _files(definition) if path != definition.loaded_from}
    for definition in loaded:
        # Tasks alone are for those who import them: there is more to know about them there.
        if definition.workflow.steps is not None or definition.loaded_from not in imported:
            found += check(root, definition, script)
    return findings.in_order(found)


def check(root: str, definition: Definition, script: Script) -> list[Finding]:
    """The findings of one workflow and of what it imports."""
    files = _files(definition)
    names = {path: names_of(file) for path, file in files.items()}
    lent = dict(names)
    for path, file in files.items():
        for imported in file.imports.values():
            lent[imported.loaded_from] = lent[imported.loaded_from].lent(names[path])
    references = References(root)
    found: list[Finding] = []
    for path, file in files.items():
        notes = Notes(file.document)
        flow.check(file.workflow, notes)
        fields.check(file, names[path], notes)
        references.check(file, notes)
        lenient = _for_others(file) if file is definition else frozenset[str]()
        expressions = Expressions(script, notes, names[path], lent[path], lenient)
        for site in file.sites():
            expressions.check(site)
        found += notes.found
    return findings.in_order(found)


def _check_remains(path: str) -> list[Finding]:
    """What is wrong with the flow and the state of a file besides its structure.

    Names are not looked for: whatever was taken out might have brought them.
    """
    try:
        document = yaml_format.load(path)
    except DefinitionError:
        return []
    workflow = remains.of(document)
    if workflow is None:
        return []
    notes = Notes(document)
    flow.check(workflow, notes)
    left = Definition("", "project", path, workflow, document, {})
    fields.check(left, replace(names_of(left), dynamic=True), notes)
    return notes.found


def _files(definition: Definition) -> dict[str, Definition]:
    """The definition and everything that it imports, each file once."""
    return {one.loaded_from: one for one in _imports(definition)}


def _imports(definition: Definition) -> Iterator[Definition]:
    yield definition
    for imported in definition.imports.values():
        yield from _imports(imported)


def _for_others(definition: Definition) -> frozenset[str]:
    """The tasks that the file itself has no use for."""
    used = {step.sub_agent_task for step, _ in walk.steps(definition.workflow) if isinstance(step, ParallelForEach)}
    return frozenset(definition.workflow.sub_agent_tasks or {}) - used


def _is_told(new: Finding, found: list[Finding]) -> bool:
    """Whether the same line has an error already: two messages about one mistake help nobody."""
    return any(new.file == old.file and new.line == old.line for old in found)
