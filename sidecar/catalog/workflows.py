"""Workflows by name: the project's, then the person's, then the built-in ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import sidecar
from sidecar.catalog import definition, imports, lookup, yaml_format
from sidecar.errors import DefinitionError, Problem
from sidecar.layout import STATE_DIRECTORY

if TYPE_CHECKING:
    from sidecar.catalog.imports import Definition
    from sidecar.catalog.lookup import Place, Source
    from sidecar.model.parameters import Parameter

_KIND = "workflows"
_BASES = (STATE_DIRECTORY, ".aromcp")


@dataclass(frozen=True, slots=True)
class Summary:
    """What lists and the tools' enum tell of a workflow."""

    name: str
    source: Source
    loaded_from: str
    version: str
    description: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Every workflow there is, and what is wrong with the files that define none."""

    workflows: tuple[Summary, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Heading:
    version: str
    description: str
    parameters: tuple[Parameter, ...]


def find(root: str, name: str) -> Definition:
    """The workflow of that name with its imports. A broken file is an error, never a reason to take the next one."""
    where = _directories(root)
    known = lookup.search(where)
    if name not in known:
        raise lookup.not_found("workflow", name, known, [directory for _, directory in where])
    place = known[name]
    path = _path(place)
    return imports.load(path, name, place.source, os.path.dirname(path))


def load(path: str) -> Definition:
    """The workflow in a file that need not be in any of the directories; its imports stay beside and below it."""
    path = os.path.abspath(path)
    name = os.path.splitext(os.path.basename(path))[0]
    return imports.load(path, name, "project", os.path.dirname(path))


def included(root: str, includer: Definition, name: str) -> Definition:
    """What `include_workflow` means by a name: a component that the includer imports, else a workflow by its name."""
    return includer.components.get(name) or find(root, name)


def places(root: str) -> list[Place]:
    """Where every workflow stands, by name, whatever is in its file."""
    return list(lookup.search(_directories(root)).values())


def listing(root: str, source: str | None = None) -> Listing:
    """All workflows of a project, by name, from one source if one is given. A broken file hides no other."""
    wanted = None if source is None else lookup.source_named(source)
    workflows: list[Summary] = []
    problems: list[str] = []
    for place in places(root):
        if wanted is not None and place.source != wanted:
            continue
        path = _path(place)
        heading = _heading_of(path)
        if isinstance(heading, _Heading):
            summary = Summary(place.name, place.source, path, heading.version, heading.description, heading.parameters)
            workflows.append(summary)
        else:
            problems.extend(heading)
    return Listing(tuple(workflows), tuple(problems))


def forget() -> None:
    """Read every file again at the next list. Only measurements need this: a file that changes is noticed."""
    _heading.cache_clear()


def builtin_directory() -> str:
    """Where the built-in workflows are: inside the package once it is installed, beside it in a checkout."""
    package = os.path.dirname(os.path.abspath(sidecar.__file__))
    inside = os.path.join(package, "builtin", _KIND)
    checkout = os.path.dirname(package)
    # Only a checkout has a pyproject.toml there; in site-packages, `workflows` would be somebody else's package.
    if not os.path.isdir(inside) and os.path.isfile(os.path.join(checkout, "pyproject.toml")):
        return os.path.join(checkout, _KIND)
    return inside


def _directories(root: str) -> list[tuple[Source, str]]:
    return [*lookup.directories(root, _KIND, _BASES), ("builtin", builtin_directory())]


def _path(place: Place) -> str:
    assert place.path is not None  # workflows are files, the built-in ones too
    return place.path


def _heading_of(path: str) -> _Heading | tuple[str, ...]:
    try:
        status = os.stat(path)
    except OSError as error:  # gone since the listing, or a link to nowhere
        return (Problem.at(path, (1, 1), f"cannot be read: {error.strerror or error}"),)
    return _heading(path, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4096)
def _heading(path: str, *_identity: int) -> _Heading | tuple[str, ...]:
    """What a file says, or its problems. Remembered until the file is another: a list is asked for again and again."""
    try:
        workflow = definition.parse(yaml_format.load(path))
    except DefinitionError as error:
        return error.problems
    return _Heading(workflow.version, workflow.description, workflow.parameters)
