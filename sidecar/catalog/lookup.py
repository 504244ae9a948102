"""Lookup by name: the project's files, then the person's own, then what is built in; the first found wins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from sidecar import layout
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterable

Source = Literal["project", "global", "builtin"]
_SUFFIXES = (".yaml", ".yml")
_NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:")


class NotFound(SidecarError):  # noqa: N818 - the name says it
    """No definition has that name."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a definition stands: its source, and its file unless it is built in."""

    name: str
    source: Source
    path: str | None


def is_name(text: str) -> bool:
    """Whether the text can name a definition. Nothing that passes can leave its directory."""
    return bool(text) and _NAME_CHARACTERS.issuperset(text)


def places(root: str, directory: str, builtin: Iterable[str]) -> dict[str, Place]:
    """Every name with the place that wins it, sorted; `directory` is the one below `.swissarmyhammer/`."""
    found: dict[str, Place] = {}
    home = os.path.expanduser("~")
    sources: list[tuple[Source, str]] = [("project", root), ("global", home)]
    for source, base in sources:
        for name, path in _files(os.path.join(layout.state_directory(base), directory)).items():
            found.setdefault(name, Place(name, source, path))
    for name in builtin:
        found.setdefault(name, Place(name, "builtin", None))
    return dict(sorted(found.items()))


def not_found(noun: str, name: str, known: Iterable[str]) -> NotFound:
    """The error for a name that nobody has: the names that exist, the nearest first."""
    if not is_name(name):
        return NotFound(f"{name!r} cannot be a name: letters, digits, '-', '_' and ':' only")
    names = sorted(known, key=lambda other: (-SequenceMatcher(None, name.lower(), other.lower()).ratio(), other))
    return NotFound(f"no such {noun}: {name}; there is: {', '.join(names)}")


def _files(directory: str) -> dict[str, str]:
    """The definitions in a directory. The listing is asked, not the path, so that names stay case-sensitive
    also where the file system is not."""
    try:
        entries = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise SidecarError(f"cannot list {directory}: {error.strerror or error}") from None
    found: dict[str, str] = {}
    for suffix in _SUFFIXES:
        for entry in entries:
            name = entry.removesuffix(suffix)
            if name != entry and is_name(name):
                found.setdefault(name, os.path.join(directory, entry))
    return found
