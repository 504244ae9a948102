"""What can be said of the expressions in the parts of a file that are wrong: whether JavaScript can read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.engine.findings import Notes
from sidecar.errors import ExpressionError
from sidecar.model.expressions import Site
from sidecar.model.language import Role, has_template
from sidecar.state.template import problems_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.catalog.remains import Out
    from sidecar.catalog.yaml_format import Document
    from sidecar.engine.findings import Finding
    from sidecar.state.script import Expression, Script

# Below a key that is wrong anything may stand; these are code wherever they are.
_CODE = (("transform",), ("validate",))


def check(document: Document, out: Sequence[Out], script: Script) -> list[Finding]:
    """The syntax errors in what was left out of a file."""
    notes = Notes(document)
    parts = [part for part in out if not (part.is_told and isinstance(part.value, str))]
    for site in (site for part in parts for site in _texts(part.value, (*notes.prefix, *part.location))):
        if site.role is Role.TRANSFORM:
            _compile(site, script, notes)
            continue
        for error in problems_of(site.text, script.compile):
            notes.inside(site, error.offset, error.message)
    return notes.found


def _compile(site: Site, script: Script, notes: Notes) -> Expression | None:
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
