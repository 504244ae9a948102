"""What can be said of the expressions in a file whose structure is wrong: whether JavaScript can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.catalog import yaml_format
from sidecar.engine.findings import Notes
from sidecar.errors import DefinitionError, ExpressionError
from sidecar.model.expressions import Site
from sidecar.model.language import Role, has_template
from sidecar.state.template import problems_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.engine.findings import Finding
    from sidecar.state.program import Program
    from sidecar.state.script import Script

# Below a key that is wrong anything may stand; these are code wherever they are.
_CODE = (("transform",), ("validate",))


def check(path: str, script: Script) -> list[Finding]:
    """The syntax errors of a file, which may be beyond help otherwise."""
    try:
        document = yaml_format.load(path)
    except DefinitionError:
        return []
    notes = Notes(document)
    for site in _texts(document.value, ()):
        if site.role is Role.TRANSFORM:
            _compile(site, script, notes)
            continue
        for error in problems_of(site.text, script.compile):
            notes.inside(site, error.offset, error.message)
    return notes.found


def _compile(site: Site, script: Script, notes: Notes) -> Program | None:
    try:
        return script.compile(site.text)
    except ExpressionError as error:
        rows = site.text.split("\n")[: (error.line or 1) - 1]
        notes.inside(site, sum(len(row) + 1 for row in rows) + (error.column or 1) - 1, error.message)
        return None


def _texts(value: object, location: tuple[int | str, ...]) -> Iterator[Site]:
    if isinstance(value, str):
        if location[-1:] in _CODE and "computed" in location:
            yield Site(location, Role.TRANSFORM, value)
        elif has_template(value):
            yield Site(location, Role.VALUE, value)
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*location, key))
