"""Whether workflows can work: everything that is wrong with them at once, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine import findings, named
from sidecar.engine.checks import durations, fields, flow, loose, walk
from sidecar.engine.checks.expressions import Expressions
from sidecar.engine.checks.names import names_of
from sidecar.engine.checks.references import References
from sidecar.engine.findings import Finding, Notes
from sidecar.model.steps_control import ParallelForEach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.catalog.imports import Definition
    from sidecar.state.script import Script


def check_all(root: str, places: Sequence[named.Named], script: Script) -> list[Finding]:
    """The findings of several workflows and of what they import, file by file."""
    found: list[Finding] = []
    loaded: list[Definition] = []
    for place in places:
        examined = place.examine()
        found += map(findings.of_problem, examined.problems)
        for document, out in examined.out.values():
            found += loose.check(document, out, script)
        if examined.definition is not None:
            loaded.append(examined.definition)
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
        durations.check(file.workflow, notes)
        fields.check(file, names[path], notes)
        references.check(file, notes)
        lenient = _for_others(file) if file is definition else frozenset[str]()
        expressions = Expressions(script, len(notes.prefix), names[path], lent[path], lenient)
        for site in file.sites():
            for mistake in expressions.check(site):
                notes.inside(site, *mistake)
        found += notes.found
    return findings.in_order(found)


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
