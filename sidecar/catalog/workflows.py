"""Loads workflows with everything that they import: by name, from a file, or from the record of a run.

Imported files are relative to the importing one, inside the directory of the first, and never in a circle.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.catalog import definition, naming, yaml_format
from sidecar.catalog.definition import AllWords, InvalidPart, valid_part
from sidecar.catalog.yaml_format import Document
from sidecar.errors import DefinitionError, Problem
from sidecar.model.workflow import ExpressionSite, SubAgentTask, Workflow, sites

if TYPE_CHECKING:
    from sidecar.catalog.naming import Source

_DEEPEST = 20
# A large file takes seconds to read: a definition that is in use is not read again from the record of it.
_in_use: weakref.WeakValueDictionary[tuple[object, ...], Definition] = weakref.WeakValueDictionary()


def find(root: str, name: str) -> Definition:
    """The workflow of that name with its imports. A broken file is an error, never a reason to take the next one."""
    return load_located(*locate(root, name))


def load(path: str) -> Definition:
    """The workflow in a file that need not be in any of the directories; its imports stay beside and below it."""
    return load_located(*located(path))


def locate(root: str, name: str) -> tuple[str, str, Source, str]:
    """Where the workflow of that name is: file, name, source, and the directory that its imports stay in."""
    source, path = naming.find(root, "workflows", name)
    assert path is not None  # workflows are files, the built-in ones too
    _refuse_stray(root, source, path)
    return path, name, source, os.path.dirname(path)


def _refuse_stray(root: str, source: Source, path: str) -> None:
    why = naming.stray(root, "workflows", source, path)
    if why is not None:
        raise DefinitionError([Problem.at(path, (1, 1), why)])


def located(path: str, root: str | None = None) -> tuple[str, str, Source, str]:
    """The same for a file; one that is in the directories of the project at `root` is refused as by its name."""
    path = os.path.abspath(path)
    directory = os.path.realpath(os.path.dirname(path))
    if root is not None:
        for source, own in naming.directories(root, "workflows"):
            if directory == os.path.realpath(own):
                _refuse_stray(root, source, path)
    return path, os.path.splitext(os.path.basename(path))[0], "project", os.path.dirname(path)


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

    def sites(self) -> Iterator[ExpressionSite]:
        """Every text with expressions in its own file."""
        return sites(self.workflow)

    def record(self) -> dict[str, Any]:
        """All of it as JSON, so that a run goes on with the very definition that it began with."""
        files: dict[str, Any] = {}
        _collect(self, files)
        return {"name": self.name, "source": self.source, "path": self.loaded_from, "files": files}


def load_located(path: str, name: str, source: Source, directory: str) -> Definition:
    """The workflow in a file with its imports, which stay inside the directory. DefinitionError has the problems of
    all the files."""
    loading = _Loading(source, os.path.realpath(directory), {}, [])
    loaded = loading.file(path, name, ())
    if loaded is None or loading.problems:
        raise DefinitionError(_in_file_order(loading.problems))
    return loaded


@dataclass(frozen=True, slots=True)
class Examined:
    """A workflow as far as it and its imports are right; None where there is none. What was left out, by file."""

    definition: Definition | None
    problems: tuple[Problem, ...]
    out: dict[str, tuple[Document, tuple[InvalidPart, ...]]]


def examine_located(path: str, name: str, source: Source, directory: str) -> Examined:
    """As `load`, but what is wrong is left out, and not a reason to stop."""
    loading = _Loading(source, os.path.realpath(directory), {}, [], keep_valid=True)
    loaded = loading.file(path, name, ())
    return Examined(loaded, tuple(_in_file_order(loading.problems)), loading.out)


def restore(record: Mapping[str, Any]) -> Definition:
    """A definition as `record` gave it, whatever became of its files."""
    return _restored(record, record["path"], record["name"])


def _collect(loaded: Definition, files: dict[str, Any]) -> None:
    imports = {entry: imported.loaded_from for entry, imported in loaded.imports.items()}
    files[loaded.loaded_from] = {"text": loaded.document.text, "imports": imports}
    for imported in loaded.imports.values():
        _collect(imported, files)


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
    known: dict[str, Definition | None]
    problems: list[Problem]
    keep_valid: bool = False
    out: dict[str, tuple[Document, tuple[InvalidPart, ...]]] = field(default_factory=dict)

    def file(self, path: str, name: str, chain: tuple[str, ...]) -> Definition | None:
        """The definition in a file; None where it has problems, which are noted."""
        try:
            document = yaml_format.load_all(path)
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
        value = document.value[where[0]] if where else document.value
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


@dataclass(frozen=True, slots=True)
class NamedWorkflow:
    """One workflow, not loaded yet: a name of the catalog, or a file."""

    root: str
    word: str

    @property
    def is_file(self) -> bool:
        """Names have no dot and no slash."""
        return os.sep in self.word or self.word.endswith(naming.SUFFIXES["workflows"])

    def load(self) -> Definition:
        """The definition; DefinitionError has its problems, NotFound the names that there are."""
        return load_located(*self._located)

    def examine(self) -> Examined:
        """The definition as far as it is right, and all that is wrong with it. NotFound as above."""
        try:
            located = self._located
        except DefinitionError as error:  # a file that is not read at all
            return Examined(None, error.problems, {})
        return examine_located(*located)

    @property
    def _located(self) -> tuple[str, str, Source, str]:
        return located(self.word, self.root) if self.is_file else locate(self.root, self.word)


def of_project(root: str) -> list[NamedWorkflow]:
    """Every workflow that is the project's own, by name."""
    known = naming.listed(root, "workflows")
    return [NamedWorkflow(root, name) for name, (source, _) in known.items() if source == "project"]
