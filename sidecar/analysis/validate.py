"""Checks workflows: everything that is wrong with them at once, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial, reduce
from typing import Any, TypeVar

from pydantic import BaseModel

from sidecar.analysis import names as analysis_names
from sidecar.analysis.commands import Severity
from sidecar.analysis.names import Expressions, Names, invalid_words
from sidecar.catalog import agents, prompts, workflows
from sidecar.catalog.definition import AllWords, InvalidPart
from sidecar.catalog.definition import prefix as wrapper
from sidecar.catalog.workflows import Definition
from sidecar.catalog.yaml_format import Document, Place
from sidecar.errors import DefinitionError, NotFound, Problem, SidecarError
from sidecar.model import duration
from sidecar.model import steps as step_types
from sidecar.model.language import Role, has_template
from sidecar.model.parameters import Parameter, is_of_type, misfit, unknown
from sidecar.model.steps import Step
from sidecar.model.workflow import ExpressionSite, Location, Workflow, step_lists, walk
from sidecar.state import javascript
from sidecar.state.paths import PathError, parse
from sidecar.state.reactive import SECTIONS, DependencyError, Graph
from sidecar.state.script import Script

_WRITTEN = ("raw", "state")


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake or a doubt in a file. An error keeps the workflow from working; a warning is for its author."""

    file: str
    line: int
    column: int
    severity: Severity
    message: str

    def __str__(self) -> str:
        mark = "warning: " if self.severity == "warning" else ""
        return f"{self.file}:{self.line}: {mark}{self.message}"


def check_all(root: str, chosen: Sequence[str], script: Script) -> list[Finding]:
    """The findings of several workflows, by name or file, and of the files that they import, file by file."""
    findings: list[Finding] = []
    loaded: list[Definition] = []
    for word in chosen:
        examined = workflows.examine(root, word)
        findings += map(_of_problem, examined.problems)
        for document, parts in examined.out.values():
            findings += _check_invalid_parts(document, parts, script)
        if examined.definition is not None:
            loaded.append(examined.definition)
    imported = {path for one in loaded for path in one.files if path != one.loaded_from}
    for one in loaded:
        # A file of tasks alone is checked with the workflow that imports it, which declares more of its names.
        if one.workflow.steps is not None or one.loaded_from not in imported:
            findings += check(root, one, script)
    return _in_order(findings)


def check(root: str, definition: Definition, script: Script) -> list[Finding]:
    """The findings of one workflow and of the files that it imports."""
    files = definition.files
    names = {path: analysis_names.names_of(file) for path, file in files.items()}
    task_names = dict(names)
    for path, file in files.items():
        for imported in file.imports.values():
            task_names[imported.loaded_from] = task_names[imported.loaded_from].with_importer(names[path])
    references = _References(root)
    all_findings: list[Finding] = []
    for path, file in files.items():
        findings = _Findings(file.document)
        _check_flow(file.workflow, findings)
        _check_durations(file.workflow, findings)
        _check_sources(file, names[path], findings)
        _check_collisions(file, names[path], findings)
        _check_writes(file, names[path], findings)
        _check_defaults(file, findings)
        references.check(file, findings)
        lenient = _unused_tasks(file) if file is definition else frozenset[str]()
        expressions = Expressions(script, names[path], task_names[path], lenient)
        findings.check_expressions(expressions, file.sites())
        all_findings += findings.items
    return _in_order(all_findings)


def _unused_tasks(definition: Definition) -> frozenset[str]:
    """The tasks that the file itself does not start."""
    steps = [step for step, _ in walk(definition.workflow)]
    used = {step.sub_agent_task for step in steps if isinstance(step, step_types.ParallelForEach)}
    return frozenset(definition.workflow.sub_agent_tasks or {}) - used


def _of_problem(problem: Problem, severity: Severity = "error") -> Finding:
    return Finding(problem.path, problem.line, problem.column, severity, problem.message)


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Each once: file by file in the order of their first findings, from top to bottom."""
    files = {file: number for number, file in enumerate(dict.fromkeys(finding.file for finding in findings))}
    return sorted(dict.fromkeys(findings), key=lambda one: (files[one.file], one.line, one.column, one.severity))


class _Findings:
    """The findings of one file, as the checks add them. Locations are inside the workflow; the file may have a wrapper
    around it, which is the prefix."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.prefix = wrapper(document.value)
        self.items: list[Finding] = []

    def add(self, location: Location, message: str, severity: Severity = "error") -> None:
        """A finding at an entry."""
        self._add(self.document.place((*self.prefix, *location)), message, severity)

    def error_at_value(self, location: Location, message: str) -> None:
        """An error at the value of an entry, which may stand on another line than its key."""
        self._add(self.document.value_place((*self.prefix, *location)), message, "error")

    def inside(self, site: ExpressionSite, offset: int, message: str, severity: Severity = "error") -> None:
        """A finding at an offset of a text."""
        line, column = javascript.line_and_column(site.text, offset)
        self._add(self.document.inside((*self.prefix, *site.location), line, column), message, severity)

    def check_expressions(self, expressions: Expressions, sites: Iterable[ExpressionSite]) -> None:
        """Add the mistakes in the expressions of some texts."""
        for site in sites:
            for mistake in expressions.check(site):
                self.inside(site, *mistake)

    def _add(self, where: Place, message: str, severity: Severity) -> None:
        self.items.append(Finding(self.document.path, *where, severity, message))


# --- flow


def _check_flow(workflow: Workflow, findings: _Findings) -> None:
    """A `break` outside of a loop, the first step of each list that is never reached, a workflow without steps."""
    if workflow.steps == ():
        message = "`steps` is empty: there is nothing to do (a file of `sub_agent_tasks` for others leaves it out)"
        findings.add(("steps",), message)
    for each in step_lists(workflow):
        for index, step in enumerate(each.steps):
            if isinstance(step, step_types.Break | step_types.Continue) and not each.in_loop:
                findings.add((*each.location, index), f"`{step.type}` is outside of any loop")
        last = next((index for index, step in enumerate(each.steps) if _ends(step)), None)
        if last is not None and last + 1 < len(each.steps):
            why = f"the step before it is `{each.steps[last].type}`"
            if isinstance(each.steps[last], step_types.Conditional):
                why = "both ways through the `conditional` before it lead elsewhere"
            findings.add((*each.location, last + 1), f"this step is never reached: {why}")


def _ends(step: Step) -> bool:
    """Whether nothing after the step, in the same list, ever runs."""
    if isinstance(step, step_types.Conditional):
        return any(map(_ends, step.then)) and any(map(_ends, step.else_ or ()))
    return isinstance(step, step_types.Exit | step_types.Break | step_types.Continue)


def _check_durations(workflow: Workflow, findings: _Findings) -> None:
    """A duration in milliseconds where its author probably meant seconds. It is looked up in the file, because the
    model has converted it to seconds."""
    owners: list[tuple[BaseModel, Location]] = [(workflow.limits, ("limits",)), *walk(workflow)]
    owners.append((workflow.error_handling, ("error_handling",)))
    for owner, location in owners:
        for key, name in duration.keys(type(owner)):
            if name in owner.model_fields_set:
                path = (*findings.prefix, *location, key)
                written: Any = reduce(lambda value, part: value[part], path, findings.document.value)
                doubt = duration.doubt(written)
                if doubt is not None:
                    findings.add((*location, key), f"`{key}`: {doubt}", "warning")


# --- state


def _check_sources(definition: Definition, names: Names, findings: _Findings) -> None:
    """Sources of computed fields that do not exist, and fields that are computed from themselves."""
    valid: dict[str, tuple[str, ...]] = {}
    for name, computed in definition.workflow.state_schema.computed.items():
        valid[name] = ()
        for index, source in enumerate(computed.sources):
            problem = _source_problem(source, names)
            if problem is None:
                valid[name] += (source,)
            else:
                item = () if isinstance(computed.from_, str) else (index,)
                findings.error_at_value(("state_schema", "computed", name, "from", *item), problem)
    _check_cycles(valid, findings)


def _source_problem(text: str, names: Names) -> str | None:
    try:
        path = parse(text)
    except PathError as error:
        return str(error)
    section = str(path[0])
    if section == "inputs":
        return f"{text!r} never changes, so nothing follows from it: use it in the `transform`"
    if section not in SECTIONS or len(path) < 2 or not isinstance(path[1], str):
        home = next((section for section in SECTIONS if path[0] in names.fields[section]), None)
        advice = f"did you mean {home}.{text}?" if home else "it has to begin with raw., state. or computed."
        return f"{text!r} does not say where it is: {advice}"
    if path[1] in names.fields[section] or (names.dynamic and section != "computed") or names.may_declare(path[1]):
        return None
    return f"there is no {section}.{path[1]}{_near(section, path[1], names)}"


def _near(section: str, name: str, names: Names) -> str:
    everything = [f"{where}.{field}" for where in SECTIONS for field in sorted(names.fields[where])]
    near = get_close_matches(f"{section}.{name}", everything, 1)
    return f"; did you mean {near[0]!r}?" if near else ": no field has that name, and no step writes it"


def _check_cycles(fields: dict[str, tuple[str, ...]], findings: _Findings) -> None:
    """Every cycle, each once: the field that closes one is removed, and the others are checked again."""
    fields = {name: sources for name, sources in fields.items() if sources}
    while fields:
        existing = {
            name: tuple(source for source in sources if _exists(source, fields)) or ("raw.nothing",)
            for name, sources in fields.items()
        }
        try:
            Graph(existing)
        except DependencyError as error:
            findings.add(("state_schema", "computed", error.field), str(error))
            del fields[error.field]
        else:
            return


def _exists(source: str, fields: Collection[str]) -> bool:
    path = parse(source)
    return path[0] != "computed" or path[1] in fields


def _check_collisions(definition: Definition, names: Names, findings: _Findings) -> None:
    """Names are flat for readers: of two fields with one name, only one can be seen."""
    schema = definition.workflow.state_schema
    declared = [(section, field) for section in SECTIONS for field in names.declared[section]]
    for section, field in declared:
        where = ("state_schema" if field in getattr(schema, section) else "default_state", section, field)
        if section != "computed" and field in names.declared["computed"]:
            findings.add(where, f"{section}.{field} is hidden by the computed field of that name: rename one of them")
        elif section == "state" and field in names.fields["raw"]:
            findings.add(where, f"state.{field} is hidden by raw.{field} wherever the name is read", "warning")
        if field in javascript.RESERVED or field in javascript.GLOBALS:
            message = f"{field!r} is a word of JavaScript: no expression can read a field of that name"
            findings.add(where, message, "warning")
        elif field in analysis_names.ALWAYS_VISIBLE:
            message = f"{field!r} is something else in every expression: none can read a field of that name"
            findings.add(where, message, "warning")


def _check_writes(definition: Definition, names: Names, findings: _Findings) -> None:
    """Writes to a field that no expression can read, or whose name is probably misspelt."""
    schema = definition.workflow.state_schema
    for site in definition.sites():
        section, field = (analysis_names.written_field(site.text) if site.role is Role.PATH else None) or ("", None)
        if field is None or (site.task is not None and not definition.workflow.steps):
            continue
        if field in names.declared["computed"]:
            findings.inside(
                site, 0, f"{section}.{field} is hidden by the computed field of that name: rename one of them"
            )
        elif schema.raw or schema.state:
            declared = [f"{where}.{name}" for where in _WRITTEN for name in sorted(names.declared[where])]
            near = get_close_matches(f"{section}.{field}", declared, 1, 0.85)
            if near and f"{section}.{field}" not in declared:
                message = f"{section}.{field} is declared nowhere; did you mean {near[0]!r}?"
                findings.inside(site, 0, message, "warning")


def _check_defaults(definition: Definition, findings: _Findings) -> None:
    """Defaults that are not of the type in the schema."""
    schema, defaults = definition.workflow.state_schema, definition.workflow.default_state
    for section in _WRITTEN:
        types = getattr(schema, section)
        for field, value in getattr(defaults, section).items():
            fits = value is None or has_template(value) or field not in types or is_of_type(value, types[field])
            if not fits:
                message = f"{section}.{field} is not of type {types[field]}, which it is declared to be"
                findings.add(("default_state", section, field), message)


# --- tasks, other workflows, agents and prompts


_Found = TypeVar("_Found")


def _found(find: Callable[..., _Found], *names: Any) -> _Found | str:
    """What there is by a name, or why there is nothing."""
    try:
        return find(*names)
    except SidecarError as error:
        return _message(error)


class _References:
    """Checks the names of tasks, workflows, agents and prompts. Each is looked up once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._agent_named = cache(partial(_found, agents.find, root))
        self._workflows: dict[tuple[str, str], Definition | str] = {}

    def check(self, definition: Definition, findings: _Findings) -> None:
        """Every name in a file that does not exist."""
        for step, where in walk(definition.workflow):
            if isinstance(step, step_types.ParallelForEach):
                name, tasks = step.sub_agent_task, definition.tasks
                if name not in tasks and not _may_declare(definition, name):
                    findings.add((*where, "sub_agent_task"), unknown(name, tasks, "sub-agent task"))
            if isinstance(step, step_types.IncludeWorkflow):
                self._include(definition, step, where, findings)
            if isinstance(step, step_types.AgentStep | step_types.ApplyHints | step_types.ParallelForEach):
                self._agent(step.agent, where, findings)
            if isinstance(step, step_types.AgentStep) and step.prompt_name is not None:
                self._prompt(step, step.prompt_name, where, findings)

    def _agent(self, name: str | None, where: Location, findings: _Findings) -> None:
        if name is None or has_template(name):
            return
        found = self._agent_named(name)
        if isinstance(found, str):
            findings.add((*where, "agent"), found)
        else:
            findings.items += [_of_problem(doubt, "warning") for doubt in agents.doubts(found)]

    def _prompt(self, step: step_types.AgentStep, name: str, where: Location, findings: _Findings) -> None:
        found = _found(prompts.find, self.root, name)
        if isinstance(found, str):
            findings.add((*where, "prompt_name"), found)
        else:
            _arguments(found.parameters, step.parameters, (*where, "parameters"), f"prompt {name!r}", findings)

    def _include(
        self, definition: Definition, step: step_types.IncludeWorkflow, where: Location, findings: _Findings
    ) -> None:
        at, name = (*where, "workflow"), step.workflow
        found = self._included(definition, name)
        if isinstance(found, str):
            if not _may_declare(definition, name):
                findings.add(at, found)
            return
        circle = self._circle(definition, found, (definition.loaded_from,))
        if circle is not None:
            findings.add(at, f"workflows include each other: {' → '.join([definition.name, *circle])}")
        parameters, fields = found.workflow.parameters, found.workflow.raw_fields
        _arguments(parameters, step.inputs, (*where, "inputs"), f"workflow {name!r}", findings, fields=fields)
        if found.workflow.error_handling.on_error == "retry_workflow":
            message = f"`retry_workflow` of {name!r} holds for a run of its own only: use `on_error: retry` here"
            findings.add(at, message, "warning")
        limits = sorted(found.workflow.limits.model_fields_set)
        if limits:
            keys = ", ".join(f"`{name.removesuffix('_s')}`" for name in limits)
            message = f"{keys} of {name!r} hold for a run of its own only: put what is to hold into `limits` here"
            findings.add(at, message, "warning")

    def _included(self, includer: Definition, name: str) -> Definition | str:
        key = (includer.loaded_from, name)
        if key not in self._workflows:
            found = _found(workflows.included, self.root, includer, name)
            has_steps = isinstance(found, str) or found.workflow.steps is not None
            self._workflows[key] = found if has_steps else f"{name!r} has no steps: it cannot be included"
        return self._workflows[key]

    def _circle(self, first: Definition, at: Definition, chain: tuple[str, ...]) -> list[str] | None:
        """The names on the way back to the first workflow, where inclusion leads there."""
        if at.loaded_from == first.loaded_from:
            return [at.name]
        if at.loaded_from in chain:
            return None  # a circle, but one that the first is not part of: its own files have that finding
        for step, _ in walk(at.workflow):
            following = self._included(at, step.workflow) if isinstance(step, step_types.IncludeWorkflow) else ""
            if isinstance(following, str):
                continue
            rest = self._circle(first, following, (*chain, at.loaded_from))
            if rest is not None:
                return [at.name, *rest]
        return None


def _may_declare(definition: Definition, name: str) -> bool:
    """Whether an invalid part of a file may declare a task or a component."""
    return any(name in words for words in invalid_words(definition))


def _message(error: SidecarError) -> str:
    if isinstance(error, DefinitionError):
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        return f"it has problems itself: {error.problems[0]}{more}"
    return str(error).partition("; looked in ")[0] if isinstance(error, NotFound) else str(error)


def _arguments(
    declared: Sequence[Parameter],
    given: Mapping[str, object],
    where: Location,
    subject: str,
    findings: _Findings,
    *,
    fields: Collection[str] = (),
) -> None:
    """Values for declared parameters, and for `fields`; templates are evaluated by the run only."""
    parameters = {parameter.name: parameter for parameter in declared}
    for name, value in given.items():
        if name not in parameters:
            if name not in fields:
                findings.add((*where, name), f"{subject}: {unknown(name, [*parameters, *fields], 'input')}")
        elif not has_template(value):
            problem = misfit(value, parameters[name])
            if problem is not None:
                findings.add((*where, name), f"{subject}: {name!r} {problem}")
    for parameter in declared:
        if parameter.is_required and parameter.default is None and parameter.name not in given:
            findings.add(where, f"{subject}: {parameter.name!r} is required")


# --- invalid parts of a file


def _check_invalid_parts(document: Document, parts: Sequence[InvalidPart], script: Script) -> list[Finding]:
    """The mistakes in the expressions of the invalid parts of a file. Which names exist there is not known."""
    findings = _Findings(document)
    names = Names(invalid_words=(AllWords(),))
    expressions = Expressions(script, names, names)
    for part in parts:
        if not (part.is_reported and isinstance(part.value, str)):  # else the text itself is what is wrong
            findings.check_expressions(expressions, _texts(part.value, part.location))
    return findings.items


def _texts(value: object, location: Location) -> Iterator[ExpressionSite]:
    if isinstance(value, str):
        # Below an invalid key anything may stand; these are code wherever they are.
        if location[-1:] in (("transform",), ("validate",)) and "computed" in location:
            yield ExpressionSite(location, Role.TRANSFORM, value)
        elif has_template(value):
            yield ExpressionSite(location, Role.VALUE, value)
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*location, key))
