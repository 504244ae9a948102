"""Workflows by name: the project's, then the person's, then the built-in ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sidecar.catalog import definition, imports, lookup, naming, yaml_format
from sidecar.errors import DefinitionError, Problem

if TYPE_CHECKING:
    from sidecar.catalog.imports import Definition
    from sidecar.catalog.lookup import Place, Source
    from sidecar.model.parameters import Parameter

_KIND: naming.Kind = "workflows"


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
class Heading:
    """What a file says of the workflow in it."""

    version: str
    description: str
    parameters: tuple[Parameter, ...]


def find(root: str, name: str) -> Definition:
    """The workflow of that name with its imports. A broken file is an error, never a reason to take the next one."""
    return imports.load(*locate(root, name))


def load(path: str) -> Definition:
    """The workflow in a file that need not be in any of the directories; its imports stay beside and below it."""
    return imports.load(*located(path))


def locate(root: str, name: str) -> tuple[str, str, Source, str]:
    """Where the workflow of that name is: file, name, source, and the directory that its imports stay in."""
    where = _directories(root)
    known = lookup.search(where)
    if name not in known:
        raise lookup.not_found("workflow", name, known, [directory for _, directory in where])
    place = known[name]
    path = _path(place)
    _refuse_stray(root, place.source, path)
    return path, name, place.source, os.path.dirname(path)


def _refuse_stray(root: str, source: Source, path: str) -> None:
    why = naming.stray(root, _KIND, source, path)
    if why is not None:
        raise DefinitionError([Problem.at(path, (1, 1), why)])


def located(path: str, root: str | None = None) -> tuple[str, str, Source, str]:
    """The same for a file; one that is in the directories of the project at `root` is refused as by its name."""
    path = os.path.abspath(path)
    directory = os.path.realpath(os.path.dirname(path))
    if root is not None:
        for source, own in naming.directories(root, _KIND):
            if directory == os.path.realpath(own):
                _refuse_stray(root, source, path)
    return path, os.path.splitext(os.path.basename(path))[0], "project", os.path.dirname(path)


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
        why = naming.stray(root, _KIND, place.source, path)
        said = heading(path) if why is None else (Problem.at(path, (1, 1), why),)
        if isinstance(said, Heading):
            workflows.append(Summary(place.name, place.source, path, said.version, said.description, said.parameters))
        else:
            problems.extend(said)
    return Listing(tuple(workflows), tuple(problems))


def heading(path: str) -> Heading | tuple[str, ...]:
    """What lists tell of one file, or its problems."""
    try:
        status = os.stat(path)
    except OSError as error:  # gone since the listing, or a link to nowhere
        return (Problem.at(path, (1, 1), f"cannot be read: {error.strerror or error}"),)
    return _heading(path, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def forget() -> None:
    """Read every file again at the next list. Only measurements need this: a file that changes is noticed."""
    _heading.cache_clear()


def builtin_directory() -> str:
    """Where the built-in workflows are."""
    return naming.builtin_directory(_KIND)


def _directories(root: str) -> list[tuple[Source, str]]:
    return [*naming.directories(root, _KIND), ("builtin", builtin_directory())]


def _path(place: Place) -> str:
    assert place.path is not None  # workflows are files, the built-in ones too
    return place.path


@lru_cache(maxsize=4096)
def _heading(path: str, *_identity: int) -> Heading | tuple[str, ...]:
    """What a file says, or its problems. Remembered until the file is another: a list is asked for again and again."""
    try:
        workflow = definition.parse(yaml_format.load_all(path))
    except DefinitionError as error:
        return error.problems
    return Heading(workflow.version, workflow.description, workflow.parameters)
