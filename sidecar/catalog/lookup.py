"""Lookup by name: the project's files, then the person's own, then what is built in; the first found wins."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from sidecar.catalog.naming import directories, files, is_name
from sidecar.errors import NotFound, SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


Source = Literal["project", "global", "builtin"]
_SUFFIXES = (".yaml", ".yml")
_SOURCES: dict[str, Source] = {
    "project": "project",
    "local": "project",
    "global": "global",
    "user": "global",
    "builtin": "builtin",
}
_MOST_NAMES = 50


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Where a definition stands: its source, and its file unless it is built in."""

    name: str
    source: Source
    path: str | None


def source_named(text: str) -> Source:
    """A source as people filter by it: `local` and `user` are other words for the first two."""
    found = _SOURCES.get(text)
    if found is None:
        raise SidecarError(f"unknown source {text!r}: one of {', '.join(_SOURCES)}")
    return found


def search(where: Iterable[tuple[Source, str]], suffixes: Sequence[str] = _SUFFIXES) -> dict[str, CatalogEntry]:
    """Every name with the place that wins it, sorted."""
    found: dict[str, CatalogEntry] = {}
    for source, directory in where:
        for name, path in _files(directory, suffixes).items():
            found.setdefault(name, CatalogEntry(name, source, path))
    return dict(sorted(found.items()))


def places(root: str, directory: str, builtin: Iterable[str]) -> dict[str, CatalogEntry]:
    """Every name with the place that wins it, sorted; `directory` is the one below `.swissarmyhammer/`."""
    found = search(directories(root, directory))
    for name in builtin:
        found.setdefault(name, CatalogEntry(name, "builtin", None))
    return dict(sorted(found.items()))


def not_found(noun: str, name: str, known: Iterable[str], searched: Iterable[str] = ()) -> NotFound:
    """The error for a name that nobody has: the names that exist, the nearest first, and where they were looked for."""
    if not is_name(name):
        return NotFound(f"{name!r} cannot be a name: letters, digits, '-', '_' and ':' only")
    names = sorted(known, key=lambda other: (-SequenceMatcher(None, name.lower(), other.lower()).ratio(), other))
    told = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" * (len(names) > _MOST_NAMES))
    looked = f"; looked in {', '.join(searched)}" if searched else ""
    return NotFound(f"no such {noun}: {name}; there is: {told or 'none'}{looked}")


def _files(directory: str, suffixes: Sequence[str]) -> dict[str, str]:
    try:
        return files(directory, suffixes)
    except OSError as error:
        raise SidecarError(f"cannot list {directory}: {error.strerror or error}") from None
