"""Checks workflows: everything that is wrong with them at once, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any

from sidecar.analysis import names as known
from sidecar.analysis.names import Expressions, Names, lost_of, names_of
from sidecar.catalog import agents, prompts, workflows
from sidecar.catalog.definition import AllWords
from sidecar.catalog.definition import prefix as wrapper
from sidecar.errors import DefinitionError, NotFound, SidecarError
from sidecar.model import duration
from sidecar.model.language import Role, has_template
from sidecar.model.parameters import is_of_type, misfit, unknown
from sidecar.model.steps import (
    AgentStep,
    ApplyHints,
    Break,
    Conditional,
    Continue,
    Exit,
    IncludeWorkflow,
    ParallelForEach,
)
from sidecar.model.workflow import ExpressionSite, step_lists, walk
from sidecar.state.javascript import GLOBALS, RESERVED, line_and_column
from sidecar.state.paths import PathError, parse
from sidecar.state.reactive import DependencyError, Graph

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pydantic import BaseModel

    from sidecar.analysis.names import Severity
    from sidecar.catalog.agents import CatalogAgent
    from sidecar.catalog.definition import InvalidPart
    from sidecar.catalog.workflows import Definition
    from sidecar.catalog.yaml_format import Document, Place
    from sidecar.errors import Problem
    from sidecar.model.parameters import Parameter
    from sidecar.model.steps import Step
    from sidecar.model.workflow import ExpressionSite, Location, Workflow
    from sidecar.state.script import Script

_WRITTEN = ("raw", "state")
# Below a key that is wrong anything may stand; these are code wherever they are.
_CODE = (("transform",), ("validate",))


def check_all(root: str, chosen: Sequence[workflows.NamedWorkflow], script: Script) -> list[Finding]:
    """The findings of several workflows and of what they import, file by file."""
    found: list[Finding] = []
    loaded: list[Definition] = []
    for workflow in chosen:
        examined = workflow.examine()
        found += map(_of_problem, examined.problems)
        for document, out in examined.out.values():
            found += _check_left_out(document, out, script)
        if examined.definition is not None:
            loaded.append(examined.definition)
    imported = {path for one in loaded for path in _files(one) if path != one.loaded_from}
    for one in loaded:
        # A file of tasks alone is checked with the workflow that imports it, where more of its names are known.
        if one.workflow.steps is not None or one.loaded_from not in imported:
            found += check(root, one, script)
    return _in_order(found)


def check(root: str, definition: Definition, script: Script) -> list[Finding]:
    """The findings of one workflow and of what it imports."""
    files = _files(definition)
    names = {path: names_of(file) for path, file in files.items()}
    lent = dict(names)
    for path, file in files.items():
        for imported in file.imports.values():
            lent[imported.loaded_from] = lent[imported.loaded_from].lent(names[path])
    references = _References(root)
    found: list[Finding] = []
    for path, file in files.items():
        findings = _Findings(file.document)
        _check_flow(file.workflow, findings)
        _check_durations(file.workflow, findings)
        _check_fields(file, names[path], findings)
        references.check(file, findings)
        lenient = _for_others(file) if file is definition else frozenset[str]()
        expressions = Expressions(script, len(findings.prefix), names[path], lent[path], lenient)
        for site in file.sites():
            for mistake in expressions.check(site):
                findings.inside(site, *mistake)
        found += findings.found
    return _in_order(found)


def _files(definition: Definition) -> dict[str, Definition]:
    """The definition and everything that it imports, each file once."""
    return {one.loaded_from: one for one in _imports(definition)}


def _imports(definition: Definition) -> Iterator[Definition]:
    yield definition
    for imported in definition.imports.values():
        yield from _imports(imported)


def _for_others(definition: Definition) -> frozenset[str]:
    """The tasks that the file itself has no use for."""
    used = {step.sub_agent_task for step, _ in walk(definition.workflow) if isinstance(step, ParallelForEach)}
    return frozenset(definition.workflow.sub_agent_tasks or {}) - used


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, or doubtful, in a file. An error keeps the workflow from working; a warning is for its author to
    decide."""

    file: str
    line: int
    column: int
    severity: Severity
    message: str

    def __str__(self) -> str:
        mark = "warning: " if self.severity == "warning" else ""
        return f"{self.file}:{self.line}: {mark}{self.message}"


def _of_problem(problem: Problem, severity: Severity = "error") -> Finding:
    """A problem of a file's structure as a finding."""
    return Finding(problem.path, problem.line, problem.column, severity, problem.message)


class _Findings:
    """The findings of one file, as the checks add them."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.prefix = wrapper(document.value)
        self.found: list[Finding] = []

    def error(self, location: Location, message: str) -> None:
        """An error at an entry; the location is one inside the workflow, without the wrapper."""
        self._add(self.document.place((*self.prefix, *location)), message, "error")

    def warning(self, location: Location, message: str) -> None:
        """A warning at an entry."""
        self._add(self.document.place((*self.prefix, *location)), message, "warning")

    def inside(self, site: ExpressionSite, offset: int, message: str, severity: Severity = "error") -> None:
        """A finding at an offset of a text. Sites have their location with the wrapper."""
        self._add(self.document.inside(site.location, *line_and_column(site.text, offset)), message, severity)

    def at(self, location: Location, message: str) -> None:
        """An error at the value of an entry, which may stand on another line than its key."""
        self._add(self.document.value_place((*self.prefix, *location)), message, "error")

    def _add(self, where: Place, message: str, severity: Severity) -> None:
        self.found.append(Finding(self.document.path, *where, severity, message))


def _in_order(found: Sequence[Finding]) -> list[Finding]:
    """Each once: file by file as they first came up, from top to bottom."""
    files = {file: number for number, file in enumerate(dict.fromkeys(finding.file for finding in found))}
    return sorted(dict.fromkeys(found), key=lambda one: (files[one.file], one.line, one.column, one.severity))


# --- flow


def _check_flow(workflow: Workflow, findings: _Findings) -> None:
    """Note every `break` outside of a loop, the first step of each list that is never reached, and a workflow that
    does nothing."""
    if workflow.steps == ():
        message = "`steps` is empty: there is nothing to do (a file of `sub_agent_tasks` for others leaves it out)"
        findings.error(("steps",), message)
    for each in step_lists(workflow):
        for index, step in enumerate(each.steps):
            if isinstance(step, Break | Continue) and not each.in_loop:
                findings.error((*each.location, index), f"`{step.type}` stands outside of every loop")
        last = next((index for index, step in enumerate(each.steps) if _ends(step)), None)
        if last is not None and last + 1 < len(each.steps):
            why = _why(each.steps[last])
            findings.error((*each.location, last + 1), f"this step is never reached: {why}")


def _ends(step: Step) -> bool:
    """Whether nothing after the step, in the same list, ever runs."""
    if isinstance(step, Conditional):
        return any(map(_ends, step.then)) and any(map(_ends, step.else_ or ()))
    return isinstance(step, Exit | Break | Continue)


def _why(step: Step) -> str:
    if isinstance(step, Conditional):
        return "both ways through the `conditional` before it lead elsewhere"
    return f"the step before it is `{step.type}`"


# --- durations


def _check_durations(workflow: Workflow, findings: _Findings) -> None:
    """Note each that is in milliseconds where its author probably meant seconds. The file has what was written, the
    model has seconds."""
    for where in _durations(workflow):
        written: Any = reduce(lambda value, part: value[part], (*findings.prefix, *where), findings.document.value)
        doubt = duration.doubt(written)
        if doubt is not None:
            findings.warning(where, f"`{where[-1]}`: {doubt}")


def _durations(workflow: Workflow) -> Iterator[Location]:
    owners: list[tuple[BaseModel, Location]] = [
        (workflow.limits, ("limits",)),
        (workflow.error_handling, ("error_handling",)),
        *walk(workflow),
    ]
    for owner, where in owners:
        for key, name in duration.keys(type(owner)):
            if name in owner.model_fields_set:
                yield (*where, key)


# --- state


def _check_fields(definition: Definition, names: Names, findings: _Findings) -> None:
    """Note everything that is wrong with the state of one file."""
    _sources(definition, names, findings)
    _collisions(definition, names, findings)
    _writes(definition, names, findings)
    _defaults(definition, findings)


def _sources(definition: Definition, names: Names, findings: _Findings) -> None:
    """What computed fields follow from, and that they do not follow from themselves."""
    sound: dict[str, tuple[str, ...]] = {}
    for name, computed in definition.workflow.state_schema.computed.items():
        several = not isinstance(computed.from_, str)
        right = []
        for index, source in enumerate(computed.sources):
            problem = _source_problem(source, names)
            if problem is None:
                right.append(source)
            else:
                where: tuple[int | str, ...] = ("state_schema", "computed", name, "from")
                findings.at((*where, index) if several else where, problem)
        sound[name] = tuple(right)
    _cycles(sound, findings)


def _source_problem(text: str, names: Names) -> str | None:
    try:
        path = parse(text)
    except PathError as error:
        return str(error)
    section = str(path[0])
    if section == "inputs":
        return f"{text!r} never changes, so nothing follows from it: use it in the `transform`"
    if section not in known.SECTIONS or len(path) < 2 or not isinstance(path[1], str):
        home = next((section for section in known.SECTIONS if path[0] in names.fields[section]), None)
        advice = f"did you mean {home}.{text}?" if home else "it has to begin with raw., state. or computed."
        return f"{text!r} does not say where it is: {advice}"
    if path[1] in names.fields[section] or (names.dynamic and section != "computed") or names.is_lost(path[1]):
        return None
    return f"there is no {section}.{path[1]}{_near(section, path[1], names)}"


def _near(section: str, name: str, names: Names) -> str:
    everything = [f"{where}.{field}" for where in known.SECTIONS for field in sorted(names.fields[where])]
    near = get_close_matches(f"{section}.{name}", everything, 1)
    return f"; did you mean {near[0]!r}?" if near else ": no field has that name, and no step writes it"


def _cycles(fields: dict[str, tuple[str, ...]], findings: _Findings) -> None:
    """Every circle, each once: the field that closes one is left out, and the rest looked at again."""
    fields = {name: sources for name, sources in fields.items() if sources}
    while fields:
        left = {
            name: tuple(source for source in sources if _is_there(source, fields)) or ("raw.nothing",)
            for name, sources in fields.items()
        }
        try:
            Graph(left)
        except DependencyError as error:
            findings.error(("state_schema", "computed", error.field), str(error))
            del fields[error.field]
        else:
            return


def _is_there(source: str, fields: dict[str, tuple[str, ...]]) -> bool:
    path = parse(source)
    return path[0] != "computed" or path[1] in fields


def _collisions(definition: Definition, names: Names, findings: _Findings) -> None:
    """Names are flat for readers: of two fields with one name, only one can be seen."""
    computed = names.declared["computed"]
    for section, field, where in _declarations(definition):
        if section != "computed" and field in computed:
            findings.error(where, f"{section}.{field} is hidden by the computed field of that name: rename one of them")
        elif section == "state" and field in names.fields["raw"]:
            findings.warning(where, f"state.{field} is hidden by raw.{field} wherever the name is read")
        if field in RESERVED or field in GLOBALS:
            findings.warning(where, f"{field!r} is a word of JavaScript: no expression can read a field of that name")
        elif field in known.EVERYWHERE:
            findings.warning(
                where, f"{field!r} is something else in every expression: none can read a field of that name"
            )


def _declarations(definition: Definition) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    schema, begin = definition.workflow.state_schema, definition.workflow.default_state
    seen: set[tuple[str, str]] = set()
    for top, part in (("state_schema", schema), ("default_state", begin)):
        for section in known.SECTIONS:
            for field in getattr(part, section, {}):
                if (section, field) not in seen:
                    seen.add((section, field))
                    yield section, field, (top, section, field)


def _writes(definition: Definition, names: Names, findings: _Findings) -> None:
    """Writes to a field that nobody could read again, or that looks like a slip of the pen."""
    schema = definition.workflow.state_schema
    for site in definition.sites():
        found = known.target(site.text) if site.role is Role.PATH else None
        if found is None or found[1] is None or (site.task is not None and not definition.workflow.steps):
            continue
        section, field = found
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


def _defaults(definition: Definition, findings: _Findings) -> None:
    """What the state begins with has to be what the schema says."""
    schema, begin = definition.workflow.state_schema, definition.workflow.default_state
    for section in _WRITTEN:
        types = getattr(schema, section)
        for field, value in getattr(begin, section).items():
            fits = value is None or has_template(value) or field not in types or is_of_type(value, types[field])
            if not fits:
                message = f"{section}.{field} is not of type {types[field]}, which it is declared to be"
                findings.error(("default_state", section, field), message)


# --- tasks, other workflows, agents and prompts


class _References:
    """Checks what files name: tasks, workflows, agents and prompts. What was looked up once is remembered."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._agents: dict[str, str | CatalogAgent] = {}
        self._workflows: dict[tuple[str, str], Definition | str] = {}

    def check(self, definition: Definition, findings: _Findings) -> None:
        """Note everything that a file names and that is not there."""
        for step, where in walk(definition.workflow):
            if isinstance(step, ParallelForEach) and not _is_known(step.sub_agent_task, definition):
                message = unknown(step.sub_agent_task, definition.tasks, "sub-agent task")
                findings.error((*where, "sub_agent_task"), message)
            if isinstance(step, IncludeWorkflow):
                self._include(definition, step, where, findings)
            if isinstance(step, AgentStep | ApplyHints | ParallelForEach):
                self._agent(step.agent, where, findings)
            if isinstance(step, AgentStep) and step.prompt_name is not None:
                self._prompt(step, step.prompt_name, where, findings)

    def _agent(self, name: str | None, where: Location, findings: _Findings) -> None:
        if name is None or has_template(name):
            return
        if name not in self._agents:
            try:
                self._agents[name] = agents.find(self.root, name)
            except SidecarError as error:
                self._agents[name] = _message(error)
        found = self._agents[name]
        if isinstance(found, str):
            findings.error((*where, "agent"), found)
        else:
            findings.found += [_of_problem(doubt, "warning") for doubt in agents.doubts(found)]

    def _prompt(self, step: AgentStep, name: str, where: Location, findings: _Findings) -> None:
        try:
            prompt = prompts.find(self.root, name)
        except SidecarError as error:
            findings.error((*where, "prompt_name"), _message(error))
            return
        _arguments(prompt.parameters, step.parameters, (*where, "parameters"), f"prompt {name!r}", findings)

    def _include(self, definition: Definition, step: IncludeWorkflow, where: Location, findings: _Findings) -> None:
        found = self._included(definition, step.workflow)
        if isinstance(found, str) and any(step.workflow in words for words in lost_of(definition)):
            return
        if isinstance(found, str):
            findings.error((*where, "workflow"), found)
            return
        circle = self._circle(definition, found, (definition.loaded_from,))
        if circle is not None:
            findings.error(
                (*where, "workflow"), f"workflows include each other: {' → '.join([definition.name, *circle])}"
            )
        place, subject, fields = (*where, "inputs"), f"workflow {step.workflow!r}", found.workflow.raw_fields
        _arguments(found.workflow.parameters, step.inputs, place, subject, findings, fields=fields)
        if found.workflow.error_handling.on_error == "retry_workflow":
            message = (
                f"`retry_workflow` of {step.workflow!r} holds for a run of its own only: use `on_error: retry` here"
            )
            findings.warning((*where, "workflow"), message)
        limits = sorted(found.workflow.limits.model_fields_set)
        if limits:
            keys = ", ".join(f"`{name.removesuffix('_s')}`" for name in limits)
            message = (
                f"{keys} of {step.workflow!r} hold for a run of its own only: put what is to hold into `limits` here"
            )
            findings.warning((*where, "workflow"), message)

    def _included(self, includer: Definition, name: str) -> Definition | str:
        key = (includer.loaded_from, name)
        if key not in self._workflows:
            try:
                found = workflows.included(self.root, includer, name)
            except SidecarError as error:
                self._workflows[key] = _message(error)
            else:
                runs = found.workflow.steps is not None
                self._workflows[key] = found if runs else f"{name!r} has no steps: it cannot be included"
        return self._workflows[key]

    def _circle(self, first: Definition, at: Definition, chain: tuple[str, ...]) -> list[str] | None:
        """The names on the way back to the first workflow, where inclusion leads there."""
        if at.loaded_from == first.loaded_from:
            return [at.name]
        if at.loaded_from in chain:
            return None  # a circle, but one that the first is not part of: its own files have that finding
        for step, _ in walk(at.workflow):
            following = self._included(at, step.workflow) if isinstance(step, IncludeWorkflow) else ""
            if isinstance(following, str):
                continue
            rest = self._circle(first, following, (*chain, at.loaded_from))
            if rest is not None:
                return [at.name, *rest]
        return None


def _is_known(task: str, definition: Definition) -> bool:
    return task in definition.tasks or any(task in words for words in lost_of(definition))


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
    """What is given to something that declares its parameters; templates are known to the run only. `fields` can be
    given, too."""
    parameters = {parameter.name: parameter for parameter in declared}
    for name, value in given.items():
        if name not in parameters:
            if name not in fields:
                findings.error((*where, name), f"{subject}: {unknown(name, [*parameters, *fields], 'input')}")
        elif not has_template(value):
            problem = misfit(value, parameters[name])
            if problem is not None:
                findings.error((*where, name), f"{subject}: {name!r} {problem}")
    for parameter in declared:
        if parameter.is_required and parameter.default is None and parameter.name not in given:
            findings.error(where, f"{subject}: {parameter.name!r} is required")


# --- what was left out


def _check_left_out(document: Document, out: Sequence[InvalidPart], script: Script) -> list[Finding]:
    """The mistakes in the expressions of what was left out of a file. Which names there are cannot be known."""
    findings = _Findings(document)
    names = Names(lost=(AllWords(),))
    expressions = Expressions(script, len(findings.prefix), names, names)
    for part in out:
        if part.is_told and isinstance(part.value, str):
            continue  # the text itself is what is wrong
        for site in _texts(part.value, (*findings.prefix, *part.location)):
            for mistake in expressions.check(site):
                findings.inside(site, *mistake)
    return findings.found


def _texts(value: object, location: tuple[int | str, ...]) -> Iterator[ExpressionSite]:
    if isinstance(value, str):
        if location[-1:] in _CODE and "computed" in location:
            yield ExpressionSite(location, Role.TRANSFORM, value)
        elif has_template(value):
            yield ExpressionSite(location, Role.VALUE, value)
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(item, (*location, key))
