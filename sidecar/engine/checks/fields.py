"""Mistakes in the state: fields that follow from nothing or from themselves, that hide each other, that do not fit."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from sidecar.engine.checks import names as known
from sidecar.model.language import Role, has_template
from sidecar.model.parameters import is_of_type
from sidecar.state.javascript import GLOBALS, RESERVED
from sidecar.state.paths import PathError, parse
from sidecar.state.reactive import DependencyError, Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.catalog.imports import Definition
    from sidecar.engine.checks.names import Names
    from sidecar.engine.findings import Notes

_WRITTEN = ("raw", "state")


def check(definition: Definition, names: Names, notes: Notes) -> None:
    """Note everything that is wrong with the state of one file."""
    _sources(definition, names, notes)
    _collisions(definition, names, notes)
    _writes(definition, names, notes)
    _defaults(definition, notes)


def _sources(definition: Definition, names: Names, notes: Notes) -> None:
    """What computed fields follow from, and that they do not follow from themselves."""
    sound: dict[str, tuple[str, ...]] = {}
    for name, computed in definition.workflow.state_schema.computed.items():
        several = not isinstance(computed.from_, str)
        right = []
        for index, source in enumerate(computed.sources):
            problem = _source_problem(source, names)
            if problem is None:
                right.append(source)
            else:
                where: tuple[int | str, ...] = ("state_schema", "computed", name, "from")
                notes.at((*where, index) if several else where, problem)
        sound[name] = tuple(right)
    _cycles(sound, notes)


def _source_problem(text: str, names: Names) -> str | None:
    try:
        path = parse(text)
    except PathError as error:
        return str(error)
    section = str(path[0])
    if section == "inputs":
        return f"{text!r} never changes, so nothing follows from it: use it in the `transform`"
    if section not in known.SECTIONS or len(path) < 2 or not isinstance(path[1], str):
        home = next((section for section in known.SECTIONS if path[0] in names.fields[section]), None)
        told = f"did you mean {home}.{text}?" if home else "it has to begin with raw., state. or computed."
        return f"{text!r} does not say where it is: {told}"
    if path[1] in names.fields[section] or (names.dynamic and section != "computed") or names.is_lost(path[1]):
        return None
    return f"there is no {section}.{path[1]}{_near(section, path[1], names)}"


def _near(section: str, name: str, names: Names) -> str:
    everything = [f"{where}.{field}" for where in known.SECTIONS for field in sorted(names.fields[where])]
    near = get_close_matches(f"{section}.{name}", everything, 1)
    return f"; did you mean {near[0]!r}?" if near else ": no field has that name, and no step writes it"


def _cycles(fields: dict[str, tuple[str, ...]], notes: Notes) -> None:
    """Every circle, each once: the field that closes one is left out, and the rest looked at again."""
    fields = {name: sources for name, sources in fields.items() if sources}
    while fields:
        left = {
            name: tuple(source for source in sources if _is_there(source, fields)) or ("raw.nothing",)
            for name, sources in fields.items()
        }
        try:
            Graph(left)
        except DependencyError as error:
            notes.error(("state_schema", "computed", error.field), str(error))
            del fields[error.field]
        else:
            return


def _is_there(source: str, fields: dict[str, tuple[str, ...]]) -> bool:
    path = parse(source)
    return path[0] != "computed" or path[1] in fields


def _collisions(definition: Definition, names: Names, notes: Notes) -> None:
    """Names are flat for readers: of two fields with one name, only one can be seen."""
    computed = names.declared["computed"]
    for section, field, where in _declarations(definition):
        if section != "computed" and field in computed:
            notes.error(where, f"{section}.{field} is hidden by the computed field of that name: rename one of them")
        elif section == "state" and field in names.fields["raw"]:
            notes.warning(where, f"state.{field} is hidden by raw.{field} wherever the name is read")
        if field in RESERVED or field in GLOBALS:
            notes.warning(where, f"{field!r} is a word of JavaScript: no expression can read a field of that name")
        elif field in known.EVERYWHERE:
            notes.warning(where, f"{field!r} is something else in every expression: none can read a field of that name")


def _declarations(definition: Definition) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    schema, begin = definition.workflow.state_schema, definition.workflow.default_state
    seen: set[tuple[str, str]] = set()
    for top, part in (("state_schema", schema), ("default_state", begin)):
        for section in known.SECTIONS:
            for field in getattr(part, section, {}):
                if (section, field) not in seen:
                    seen.add((section, field))
                    yield section, field, (top, section, field)


def _writes(definition: Definition, names: Names, notes: Notes) -> None:
    """Writes to a field that nobody could read again, or that looks like a slip of the pen."""
    schema = definition.workflow.state_schema
    for site in definition.sites():
        found = known.target(site.text) if site.role is Role.PATH else None
        if found is None or found[1] is None or (site.task is not None and not definition.workflow.steps):
            continue
        section, field = found
        if field in names.declared["computed"]:
            notes.inside(site, 0, f"{section}.{field} is hidden by the computed field of that name: rename one of them")
        elif schema.raw or schema.state:
            declared = [f"{where}.{name}" for where in _WRITTEN for name in sorted(names.declared[where])]
            near = get_close_matches(f"{section}.{field}", declared, 1, 0.85)
            if near and f"{section}.{field}" not in declared:
                message = f"{section}.{field} is declared nowhere; did you mean {near[0]!r}?"
                notes.inside(site, 0, message, "warning")


def _defaults(definition: Definition, notes: Notes) -> None:
    """What the state begins with has to be what the schema says."""
    schema, begin = definition.workflow.state_schema, definition.workflow.default_state
    for section in _WRITTEN:
        types = getattr(schema, section)
        for field, value in getattr(begin, section).items():
            fits = value is None or has_template(value) or field not in types or is_of_type(value, types[field])
            if not fits:
                notes.error(
                    ("default_state", section, field),
                    f"{section}.{field} is not of type {types[field]}, which it is declared to be",
                )
