"""Lookup by name: the project's files, then the person's own, then what is built in; the first found wins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from sidecar import layout
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
_NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a definition stands: its source, and its file unless it is built in."""

    name: str
    source: Source
    path: str | None


def is_name(text: str) -> bool:
    """Whether the text can name a definition. Nothing that passes can leave its directory."""
    return bool(text) and _NAME_CHARACTERS.issuperset(text)


def source_named(text: str) -> Source:
    """A source as people filter by it: `local` and `user` are other words for the first two."""
    found = _SOURCES.get(text)
    if found is None:
        raise SidecarError(f"unknown source {text!r}: one of {', '.join(_SOURCES)}")
    return found


def directories(root: str, kind: str, bases: Sequence[str] = (layout.STATE_DIRECTORY,)) -> list[tuple[Source, str]]:
    """Where definitions of a kind (`agents`, `workflows`, …) are looked for, first come first."""
    homes: list[tuple[Source, str]] = [("project", root), ("global", os.path.expanduser("~"))]
    return [(source, os.path.join(home, base, kind)) for source, home in homes for base in bases]


def search(where: Iterable[tuple[Source, str]], suffixes: Sequence[str] = _SUFFIXES) -> dict[str, Place]:
    """Every name with the place that wins it, sorted."""
    found: dict[str, Place] = {}
    for source, directory in where:
        for name, path in _files(directory, suffixes).items():
            found.setdefault(name, Place(name, source, path))
    return dict(sorted(found.items()))


def places(root: str, directory: str, builtin: Iterable[str]) -> dict[str, Place]:
    """Every name with the place that wins it, sorted; `directory` is the one below `.swissarmyhammer/`."""
    found = search(directories(root, directory))
    for name in builtin:
        found.setdefault(name, Place(name, "builtin", None))
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
    """The definitions in a directory. The listing is asked, not the path, so that names stay case-sensitive
    also where the file system is not."""
    try:
        entries = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SidecarError(f"cannot list {directory}: {error.strerror or error}") from None
    found: dict[str, str] = {}
    for suffix in suffixes:
        for entry in entries:
            name = entry.removesuffix(suffix)
            if name != entry and is_name(name):
                found.setdefault(name, os.path.join(directory, entry))
    return found
