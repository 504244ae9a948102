"""Loads workflows with everything that they import: by name, from a file, or from the record of a run.

Imported files are relative to the importing one, inside the directory of the first, and never in a circle.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.catalog import definition, naming, yaml_format
from sidecar.catalog.definition import AllWords, InvalidPart, valid_part
from sidecar.catalog.yaml_format import Document, as_json
from sidecar.errors import DefinitionError, Problem
from sidecar.model.workflow import ExpressionSite, SubAgentTask, Workflow, sites

if TYPE_CHECKING:
    from sidecar.catalog.naming import Source

_DEEPEST = 20
# A large file takes seconds to read: a definition that is in use is not read again from the record of it.
_in_use: weakref.WeakValueDictionary[tuple[object, ...], Definition] = weakref.WeakValueDictionary()


def find(root: str, name: str) -> Definition:
    """The workflow of that name with its imports. A broken file is an error, never a reason to take the next one.
    DefinitionError has the problems of all the files, NotFound the names that there are."""
    return _whole(_by_name(root, name))


def load(root: str, word: str) -> Definition:
    """As `find`; or the workflow in a file, which need not be in any of the directories. Names have no dot and no
    slash."""
    return _whole(_located(root, word))


def examine(root: str, word: str) -> Examined:
    """As `load`, but what is wrong is left out, and not a reason to stop."""
    try:
        located = _located(root, word)
    except DefinitionError as error:  # a file that is not read at all
        return Examined(None, error.problems, {})
    return _examined(located, keep_valid=True)


def of_project(root: str) -> list[str]:
    """The names of the workflows that are the project's own."""
    return [name for name, (source, _) in naming.listed(root, "workflows").items() if source == "project"]


class _Located(NamedTuple):
    """A file of a workflow, and what it is known by. Its imports stay beside and below it."""

    path: str
    name: str
    source: Source


def _by_name(root: str, name: str) -> _Located:
    source, path = naming.find(root, "workflows", name)
    assert path is not None  # workflows are files, the built-in ones too
    _refuse_stray(root, source, path)
    return _Located(path, name, source)


def _located(root: str, word: str) -> _Located:
    """A file in the directories of the project is refused as by its name."""
    if os.sep not in word and not word.endswith(naming.SUFFIXES["workflows"]):
        return _by_name(root, word)
    path = os.path.abspath(word)
    directory = os.path.realpath(os.path.dirname(path))
    for source, own in naming.directories(root, "workflows"):
        if directory == os.path.realpath(own):
            _refuse_stray(root, source, path)
    return _Located(path, _stem(path), "project")


def _refuse_stray(root: str, source: Source, path: str) -> None:
    why = naming.stray(root, "workflows", source, path)
    if why is not None:
        raise DefinitionError([Problem.at(path, (1, 1), why)])


def included(root: str, includer: Definition, name: str) -> Definition:
    """What `include_workflow` means by a name: a component that the includer imports, else a workflow by its name."""
    return includer.components.get(name) or find(root, name)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Definition:
    """A workflow, where it came from, and what it imports."""

    name: str  # by which it was found: its file's
    source: Source
    loaded_from: str
    workflow: Workflow
    document: Document
    imports: Mapping[str, Definition]  # by the path that the file has for it
    lost: Container[str] = ()  # where only a part of the file is right: words of the rest, and of lost imports

    @property
    def components(self) -> dict[str, Definition]:
        """What `include_workflow` finds here, by its `name`."""
        named = {imported.workflow.name: imported for imported in self.imports.values()}
        return {name: imported for name, imported in named.items() if name}

    @property
    def tasks(self) -> dict[str, SubAgentTask]:
        """What `parallel_foreach` finds here: the tasks of what is imported, and over them its own."""
        found: dict[str, SubAgentTask] = {}
        for imported in self.imports.values():
            found.update(imported.workflow.sub_agent_tasks or {})
        return found | (self.workflow.sub_agent_tasks or {})

    @property
    def files(self) -> dict[str, Definition]:
        """The definition and all that it imports, each file once."""
        found = {self.loaded_from: self}
        for imported in self.imports.values():
            found |= imported.files
        return found

    def sites(self) -> Iterator[ExpressionSite]:
        """Every text with expressions in its own file."""
        return sites(self.workflow)

    def record(self) -> dict[str, Any]:
        """All of it as JSON, so that a run goes on with the very definition that it began with."""
        files = {
            path: {
                "text": one.document.text,
                "imports": {entry: imported.loaded_from for entry, imported in one.imports.items()},
            }
            for path, one in self.files.items()
        }
        return {"name": self.name, "source": self.source, "path": self.loaded_from, "files": files}


@dataclass(frozen=True, slots=True)
class Examined:
    """A workflow as far as it and its imports are right; None where there is none. What was left out, by file."""

    definition: Definition | None
    problems: tuple[Problem, ...]
    out: dict[str, tuple[Document, tuple[InvalidPart, ...]]]


def _whole(located: _Located) -> Definition:
    examined = _examined(located)
    if examined.definition is None or examined.problems:
        raise DefinitionError(examined.problems)
    return examined.definition


def _examined(located: _Located, *, keep_valid: bool = False) -> Examined:
    loading = _Loading(located.source, os.path.realpath(os.path.dirname(located.path)), keep_valid)
    loaded = loading.file(located.path, located.name, ())
    return Examined(loaded, tuple(_in_file_order(loading.problems)), loading.out)


def restore(record: Mapping[str, Any]) -> Definition:
    """A definition as `record` gave it, whatever became of its files."""
    return _restored(record, record["path"], record["name"])


def _restored(record: Mapping[str, Any], path: str, name: str) -> Definition:
    entry = record["files"][path]
    imports = {key: _restored(record, target, _stem(target)) for key, target in entry["imports"].items()}
    known = _in_use.get(_identity(name, record["source"], path, entry["text"], imports))
    if known is not None:
        return known
    document = yaml_format.parse(entry["text"], path)
    return _kept(Definition(name, record["source"], path, definition.parse(document), document, imports))


def _kept(loaded: Definition) -> Definition:
    identity = _identity(loaded.name, loaded.source, loaded.loaded_from, loaded.document.text, loaded.imports)
    _in_use[identity] = loaded
    return loaded


def _identity(name: str, source: str, path: str, text: str, imports: Mapping[str, Definition]) -> tuple[object, ...]:
    """What makes a definition another. It holds what it imports, whose ids are theirs as long as it is there."""
    return name, source, path, text, tuple((key, id(imported)) for key, imported in imports.items())


@dataclass(slots=True)
class _Loading:
    """One load: what is known of each file already, and every problem so far."""

    source: Source
    directory: str
    keep_valid: bool
    known: dict[str, Definition | None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    out: dict[str, tuple[Document, tuple[InvalidPart, ...]]] = field(default_factory=dict)

    def file(self, path: str, name: str, chain: tuple[str, ...]) -> Definition | None:
        """The definition in a file; None where it has problems, which are noted."""
        try:
            document = yaml_format.load(path)
        except DefinitionError as error:
            self.problems += error.problems
            return None
        workflow = None
        lost: Container[str] = ()
        try:
            workflow = definition.parse(document)
        except DefinitionError as error:
            self.problems += error.problems
            part = valid_part(document) if self.keep_valid else None
            if part is not None:
                workflow, lost = part.workflow, part.lost
                self.out[path] = (document, part.out)
        imports = self._imports(document, (*chain, os.path.realpath(path)))
        if workflow is None:
            return None
        if len(imports) < len(workflow.imports):
            lost = AllWords()
        loaded = Definition(name, self.source, path, workflow, document, imports, lost)
        if lost == () and not document.problems:
            _kept(loaded)
        self._check_names(loaded)
        return loaded

    def _imports(self, document: Document, chain: tuple[str, ...]) -> dict[str, Definition]:
        """What a file imports, by its value, so that problems in imports are reported beside the file's own."""
        where = definition.prefix(document.value)
        value = definition.content(as_json(document.value, []))
        entries = value.get("imports") if isinstance(value, dict) else None
        found: dict[str, Definition] = {}
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if not isinstance(entry, str) or "\0" in entry:
                continue  # the definition's own check reports it
            target = os.path.normpath(os.path.join(os.path.dirname(document.path), entry))
            problem = self._refusal(entry, target, chain)
            if problem:
                self.problems.append(document.problem((*where, "imports", index), problem))
                continue
            real = os.path.realpath(target)
            if real not in self.known:
                self.known[real] = self.file(target, _stem(target), chain)
            loaded = self.known[real]
            if loaded is not None:
                found[entry] = loaded
        return found

    def _refusal(self, entry: str, target: str, chain: tuple[str, ...]) -> str | None:
        real = os.path.realpath(target)
        if os.path.commonpath([real, self.directory]) != self.directory:
            return f"{entry!r} leads out of {self.directory}"
        if len(chain) >= _DEEPEST:
            return f"imports nest more than {_DEEPEST} deep"
        if real in chain:
            circle = [*chain[chain.index(real) :], real]
            return f"imports go in a circle: {' → '.join(os.path.relpath(path, self.directory) for path in circle)}"
        if not _exists_as_spelled(real, self.directory):
            return f"no such file: {target if target.isprintable() else repr(target)}"
        return None

    def _check_names(self, loaded: Definition) -> None:
        """Nothing is known by a name that two imports give."""
        where = definition.prefix(loaded.document.value)
        givers: dict[tuple[str, str], str] = {}
        for index, entry in enumerate(loaded.workflow.imports):
            imported = loaded.imports.get(entry)
            if imported is None:
                continue
            messages = [
                f"{noun} {name!r} comes from {givers[noun, name]!r} already"
                for noun, name in _names_given(imported.workflow)
                if (noun, name) in givers
            ]
            if imported.workflow.name is None and imported.workflow.steps:
                messages.append(f"{entry!r} has no `name`, by which it could be included")
            for message in messages:
                self.problems.append(loaded.document.problem((*where, "imports", index), message))
            givers |= dict.fromkeys(_names_given(imported.workflow), entry)


def _names_given(workflow: Workflow) -> Iterator[tuple[str, str]]:
    """The names that an import gives to its importer."""
    if workflow.name is not None:
        yield "component", workflow.name
    for task in workflow.sub_agent_tasks or ():
        yield "task", task


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    """The importing file's first, each file's from top to bottom."""
    files = {path: number for number, path in enumerate(dict.fromkeys(problem.path for problem in problems))}
    return sorted(problems, key=lambda problem: (files[problem.path], problem.line, problem.column))


def _exists_as_spelled(path: str, directory: str) -> bool:
    """Whether the listings have every name in a path: names are case-sensitive also where the file system is not."""
    here = directory
    for part in os.path.relpath(path, directory).split(os.sep):
        try:
            if part not in os.listdir(here):
                return False
        except OSError:
            return False
        here = os.path.join(here, part)
    return True


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]
