"""Which names an expression can use, which of them keep their first value, and what is wrong with an expression."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.errors import ExpressionError, ShellError, SidecarError, TemplateError
from sidecar.model.language import Role, has_template
from sidecar.model.steps import (
    AgentShellCommand,
    ApplyHints,
    Fallible,
    ForEach,
    IncludeWorkflow,
    ParallelForEach,
    ShellCommand,
    While,
)
from sidecar.model.workflow import walk
from sidecar.state import javascript, shell
from sidecar.state.javascript import FILTERS, Placeholder, split_template
from sidecar.state.paths import PathError, compile_path
from sidecar.state.reactive import Graph
from sidecar.state.script import Expression
from sidecar.state.template import as_text
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator

    from sidecar.catalog.workflows import Definition
    from sidecar.engine.evaluation import Texts
    from sidecar.engine.run import WorkflowState
    from sidecar.model.steps import StepBase
    from sidecar.model.workflow import ExpressionSite, SubAgentTask
    from sidecar.state.javascript import Token
    from sidecar.state.script import Script
    from sidecar.state.template import Slot

Severity = Literal["error", "warning"]
# What every expression has. `feedback` is what `resume` brought, null before that.
EVERYWHERE = frozenset({"inputs", "now", "uuid", "feedback"})
AT_THE_START = frozenset({"inputs", "now", "uuid"})
# What only some places have, and which.
ELSEWHERE = {
    "item": "inside `foreach` and in the tasks of `parallel_foreach`",
    "index": "inside `foreach` and in the tasks of `parallel_foreach`; inside `while` it is loop.index",
    "loop": "inside `while` and `foreach`",
    "result": "in the `state_update` of a step that has a result",
    "applied_count": "in the `state_update` of `apply_hints`",
    "error": "in `error_state_update`, `on_failure` and `cleanup_on_error`",
    "input": "in the `transform` and the `validate` of a computed field",
    "output": "in the `validate` of a computed field",
}
SECTIONS = ("raw", "state", "computed")
_CODE = frozenset({Role.TRANSFORM, Role.CHECK})
_STEP_LISTS = frozenset({"steps", "body", "then", "else", "on_failure", "cleanup_on_error"})


def _no_fields() -> dict[str, frozenset[str]]:
    return dict.fromkeys(SECTIONS, frozenset[str]())


@dataclass(frozen=True, slots=True)
class Names:
    """What a definition gives to its expressions wherever they stand."""

    inputs: frozenset[str] = frozenset()
    fields: dict[str, frozenset[str]] = field(default_factory=_no_fields)  # by section: declared, begun with, written
    declared: dict[str, frozenset[str]] = field(default_factory=_no_fields)  # those of the schema and the defaults
    included: frozenset[str] = frozenset()
    dynamic: bool = False  # some step writes a field whose name only the run knows
    tasks: dict[str, SubAgentTask] = field(default_factory=dict)
    lost: tuple[Container[str], ...] = ()  # words of what is wrong in the file: names may be declared there

    def is_lost(self, name: str) -> bool:
        """Whether the name may be declared in a part of the file that is wrong."""
        return any(name in words for words in self.lost)

    @property
    def flat(self) -> frozenset[str]:
        """The names of the state, and of what was included."""
        return self.included.union(*self.fields.values())

    def lent(self, other: Names) -> Names:
        """With what an importer adds to the tasks that it takes from here."""
        fields = {section: self.fields[section] | other.fields[section] for section in SECTIONS}
        return replace(
            self,
            inputs=self.inputs | other.inputs,
            fields=fields,
            included=self.included | other.included,
            dynamic=self.dynamic or other.dynamic,
            lost=self.lost + other.lost,
        )


def names_of(definition: Definition) -> Names:
    """What a definition's own file gives, and the tasks that it imports write."""
    workflow = definition.workflow
    schema, begin = workflow.state_schema, workflow.default_state
    declared = {
        "raw": frozenset({*schema.raw, *begin.raw}),
        "state": frozenset({*schema.state, *begin.state}),
        "computed": frozenset(schema.computed),
    }
    written = set(_written(definition))
    fields = {
        section: declared[section] | {name for where, name in written if where == section and name is not None}
        for section in SECTIONS
    }
    return Names(
        inputs=frozenset(workflow.inputs),
        fields=fields,
        declared=declared,
        included=frozenset(step.id for step, _ in walk(workflow) if isinstance(step, IncludeWorkflow)),
        dynamic=any(name is None for _, name in written),
        tasks=workflow.sub_agent_tasks or {},
        lost=lost_of(definition),
    )


def lost_of(definition: Definition) -> tuple[Container[str], ...]:
    """The words of what is wrong in a file and in what it imports."""
    return (definition.lost, *(imported.lost for imported in definition.imports.values()))


def target(text: str) -> tuple[str, str | None] | None:
    """The section and the field that a path writes; no field where only the run knows it; None for no path."""
    try:
        first, second = compile_path(text, lambda source: Expression(source, (), (), "", 0)).segments[:2]
    except (PathError, ExpressionError):  # `Expressions` finds it
        return None
    section = "" if isinstance(first, int) else first.text
    return section, None if isinstance(second, int) or second.slots else second.text


def _written(definition: Definition) -> Iterator[tuple[str, str | None]]:
    sites = [site for site in definition.sites() if site.role is Role.PATH]
    for imported in definition.imports.values():
        sites += [site for site in imported.sites() if site.role is Role.PATH and site.task is not None]
    for site in sites:
        found = target(site.text)
        if found is not None:
            yield found
    collection = definition.workflow.error_handling.error_collection
    if collection is not None and collection.enabled:
        found = target(collection.state_path)
        if found is not None:
            yield found


def visible(site: ExpressionSite, names: Names, prefix: int) -> Collection[str]:
    """Every name that an expression at a site can use; `prefix`: how much of its location is the wrapper."""
    location = site.location[prefix:]
    if location[0] == "default_state":
        return AT_THE_START
    return names.flat | EVERYWHERE | set(_around(site, location, names)) | set(_own(site, location))


def _around(site: ExpressionSite, location: tuple[int | str, ...], names: Names) -> Iterator[str]:
    """What the loops, the task and the error handling around it add."""
    for step in site.steps[:-1]:
        yield from _of_loop(step)
    if site.task is not None:
        yield from ("item", "index")
        if location[2] != "inputs" and site.task in names.tasks:
            yield from names.tasks[site.task].inputs
    handling = location[2:4] if site.task is not None else location[:2]
    if site.steps and handling in (("error_handling", "on_failure"), ("error_handling", "cleanup_on_error")):
        yield "error"


def _of_loop(step: StepBase) -> Iterator[str]:
    if isinstance(step, ForEach):
        yield from ("item", "index", "loop")
    elif isinstance(step, While):
        yield "loop"


def _own(site: ExpressionSite, location: tuple[int | str, ...]) -> Iterator[str]:
    """What the key adds that it stands under."""
    if site.role in (Role.TRANSFORM, Role.CHECK):
        yield "input"
    if site.role is Role.CHECK:
        yield "output"
    key = _key(location, len(site.steps))
    if key == "state_update" and isinstance(site.step, Fallible):
        yield "result"
        if isinstance(site.step, ApplyHints):
            yield "applied_count"
    elif key == "error_state_update":
        yield "error"
    elif key == "sub_agent_prompt_override" and isinstance(site.step, ParallelForEach):
        yield from ("item", "index", "task_id", "workflow_id", "description")
    elif key == "condition" and isinstance(site.step, While):
        yield "loop"


def _key(location: tuple[int | str, ...], depth: int) -> str:
    """The key of the innermost step that leads to a site; empty outside of steps."""
    for at, part in enumerate(location):
        if depth == 0:
            break
        if part in _STEP_LISTS and at + 2 < len(location) and isinstance(location[at + 1], int):
            depth -= 1
            if depth == 0:
                return str(location[at + 2])
    return ""


# --- which names keep their first value


class Constants:
    """The names of one definition that keep their first value: no step, no clock and no resume changes it. Without
    `space` there are none, because only the run has the inputs."""

    def __init__(self, definition: Definition, texts: Texts, space: WorkflowState | None) -> None:
        self.texts = texts
        self._view = None if space is None else space.view({})
        self._names: set[str] = set()
        self._writers: dict[str, list[str]] = {}  # the ids of the steps that write a name
        # By the identity of the step: imported tasks may repeat an id.
        self._sites: dict[int, list[ExpressionSite]] = {}
        schema, begun = definition.workflow.state_schema, definition.workflow.default_state
        declared = {"state": {*schema.state, *begun.state}, "raw": {*schema.raw, *begun.raw}}
        graph = Graph({name: one.sources for name, one in schema.computed.items()})
        changing = self._find_writers(definition, declared, graph)
        if space is None:
            return
        changing |= {f"raw.{name}" for name in space.engine_fields}  # the engine itself writes these
        for section, defaults in (("state", begun.state), ("raw", begun.raw)):
            changing |= {f"{section}.{name}" for name, given in defaults.items() if self._read_by(given) - {"inputs"}}
        self._names.add("inputs")
        for section, fields in declared.items():  # readers see computed over raw over state
            for name in fields:
                (self._names.discard if f"{section}.{name}" in changing else self._names.add)(name)
        for name in graph.order:
            codes = [code for code in (schema.computed[name].transform, schema.computed[name].validate_) if code]
            read = {one for code in codes for one in texts.program(code).names} - {"input", "output"}
            if read <= self._names and changing.isdisjoint(source.key for source in graph.sources[name]):
                self._names.add(name)
            else:
                changing.add(f"computed.{name}")
                self._names.discard(name)

    def value(self, given: Any, hidden: Collection[str], problems: list[str]) -> tuple[Any, bool]:
        """A value of the definition with all that is constant filled in, and whether that is all of it. `hidden` are
        names that loops and tasks give; what fails is added to the problems."""
        if isinstance(given, dict):
            found = {key: self.value(item, hidden, problems) for key, item in given.items()}
            return {key: value for key, (value, _) in found.items()}, all(known for _, known in found.values())
        if isinstance(given, list | tuple):
            items = [self.value(item, hidden, problems) for item in given]
            return [value for value, _ in items], all(known for _, known in items)
        if not isinstance(given, str) or not has_template(given):
            return given, True
        try:
            parts = self.texts.value(given).parts
        except SidecarError as error:
            problems.append(str(error))
            return given, False
        seen = [part if isinstance(part, str) else self.slot(part, hidden, problems) for part in parts]
        known = all(one is not shell.UNKNOWN for one in seen)
        filled = [one for part, one in zip(parts, seen, strict=True) if not isinstance(part, str) or part.strip()]
        if known and len(filled) == 1:
            return filled[0], True
        texts = [
            given[part.placeholder.offset : part.placeholder.end] if one is shell.UNKNOWN else as_text(one)
            for part, one in zip(parts, seen, strict=True)
        ]
        return "".join(texts), known

    def slot(self, slot: Slot, hidden: Collection[str], problems: list[str], *, is_filtered: bool = True) -> Any:
        """What an expression of a text comes to, or UNKNOWN."""
        if self._view is not None and self._names.difference(hidden).issuperset(slot.expression.names):
            try:
                return (slot.value if is_filtered else slot.evaluate)(self._view.run)
            except ExpressionError as error:
                problems.append(str(error))
        return shell.UNKNOWN

    def writers_of(self, step: StepBase, hidden: Collection[str]) -> set[str]:
        """The ids of the steps that write what a step reads; loops and tasks around it give it the hidden names."""
        sites = [site for site in self._sites.get(id(step), ()) if site.role not in (Role.PATTERN, Role.SOURCE)]
        texts = [as_template(site.text) if site.role is Role.CONDITION else site.text for site in sites]
        read = {name for text in texts for name in self._read_by(text) if name not in hidden}
        return {writer for name in read for writer in self._writers.get(name, ())}

    def _find_writers(self, definition: Definition, declared: dict[str, set[str]], graph: Graph) -> set[str]:
        """Note which steps write which names; the fields that are written."""
        written = set()
        for site in (site for file in (definition, *definition.imports.values()) for site in file.sites()):
            if site.step is None:
                continue
            self._sites.setdefault(id(site.step), []).append(site)
            section, name = (target(site.text) if site.role is Role.PATH else None) or ("", None)
            for one in declared.get(section, ()) if name is None else (name,):
                key = f"{section}.{one}"
                written.add(key)
                for changed in (key, *graph.dependencies(key).dependents):
                    self._writers.setdefault(changed.partition(".")[2], []).append(site.step.id)
        for step, _ in walk(definition.workflow):
            if isinstance(step, IncludeWorkflow):
                self._writers.setdefault(step.id, []).append(step.id)
        collection = definition.workflow.error_handling.error_collection
        if collection is not None and collection.enabled:
            section, name = target(collection.state_path) or ("", None)
            written.add(f"{section}.{name}")
        return written

    def _read_by(self, given: object) -> set[str]:
        """The names that the templates of a value read."""
        if isinstance(given, dict | list):
            inner = given.values() if isinstance(given, dict) else given
            return {name for one in inner for name in self._read_by(one)}
        try:
            return set(self.texts.value(given).names) if isinstance(given, str) and has_template(given) else set()
        except SidecarError:
            return set()


# --- what is wrong with an expression


def as_template(condition: str) -> str:
    """A condition with braces around it; it may stand without."""
    return condition if has_template(condition) else f"{{{{ {condition}\n}}}}"


def bare(expression: str) -> str:
    """An expression without the braces around it."""
    text = expression.strip()
    inner = text.removeprefix("{{").removesuffix("}}")
    return inner.strip() if len(inner) == len(text) - 4 and "{{" not in inner else text


class Mistake(NamedTuple):
    """What is wrong, or doubtful, at an offset of a text."""

    offset: int
    message: str
    severity: Severity = "error"


@dataclass(slots=True)
class Expressions:
    """Checks the expressions of one file. `lenient`: tasks for importers, which may have names that it does not."""

    script: Script
    prefix: int  # how much of a location is the wrapper
    names: Names
    lent: Names  # the same, for the tasks: with what the importers have
    lenient: frozenset[str] = frozenset()

    def check(self, site: ExpressionSite) -> Iterator[Mistake]:
        """Everything that is wrong with one text."""
        if site.role is Role.SOURCE:
            return  # a path of the state: it is checked with the computed fields
        if site.role is Role.PATTERN:
            yield from self._pattern(site)
        elif site.role in _CODE:
            yield from self._code(site, site.text, 0)
        else:
            yield from self._template(site)

    def _template(self, site: ExpressionSite) -> Iterator[Mistake]:
        try:
            parts = split_template(site.text)
        except TemplateError as error:
            yield Mistake(error.offset, error.message)
            return
        holes = [part for part in parts if isinstance(part, Placeholder)]
        if site.role is Role.CONDITION and not holes:
            yield from self._code(site, site.text, 0)
            return
        for hole in holes:
            yield from self._code(site, hole.source, hole.source_offset)
        alone = len(holes) == 1 and not any(part.strip() for part in parts if isinstance(part, str))
        if site.role in (Role.CONDITION, Role.ITEMS) and not alone:
            what = "a condition, and text always holds" if site.role is Role.CONDITION else "a list"
            yield Mistake(0, f"{{{{ }}}} among other text is text, not {what}: put all of it into one {{{{ }}}}")
        if site.role is Role.COMMAND:
            yield from self._command(site)
        if site.role is Role.PATH:
            try:
                compile_path(site.text, self.script.compile)
            except PathError as error:
                yield Mistake(0, str(error))
            except ExpressionError:
                pass  # one of the holes, which were checked above

    def _command(self, site: ExpressionSite) -> Iterator[Mistake]:
        """Of a list, each element is a site; whether it is the script of a shell, only the whole list can say."""
        element = site.location[-1]
        command = site.step.command if isinstance(site.step, ShellCommand | AgentShellCommand) else site.text
        try:
            found = shell.check(site.text) if isinstance(element, str) else shell.check_list(command)[element]
        except ShellError as error:
            yield Mistake(0, str(error))
            return
        for finding in found:
            yield Mistake(finding.offset, finding.message, "error" if finding.is_error else "warning")

    def _pattern(self, site: ExpressionSite) -> Iterator[Mistake]:
        program = self.script.compile(f"new RegExp({json.dumps(site.text)}), 0")
        world = World(self.script)
        try:
            world.run(program)
        except ExpressionError as error:
            yield Mistake(0, f"not a regular expression: {error.message}")
        finally:
            world.close()

    def _code(self, site: ExpressionSite, source: str, at: int) -> Iterator[Mistake]:
        """Check JavaScript that stands at an offset of the text."""
        try:
            program = self.script.compile(source)
        except ExpressionError as error:
            yield Mistake(at + _offset(source, error.line, error.column), error.message)
            return
        names = self.names if site.task is None else self.lent
        can_use = visible(site, names, self.prefix)
        unknown = [name for name in program.names if name not in can_use and not names.is_lost(name)]
        if unknown or "inputs" in program.names:
            found = javascript.scan(source).tokens
            for name in unknown:
                yield from self._unknown(site, name, at, found, names)
            if "inputs" in program.names:
                yield from self._inputs(site, at, found, names)

    def _unknown(self, site: ExpressionSite, name: str, at: int, found: list[Token], names: Names) -> Iterator[Mistake]:
        places = list(_mentions(found, name))
        if any(_before(found, index) == "typeof" for index in places):
            return  # the author asks whether there is one
        index = next((index for index in places if _after(found, index) != ":"), places[0] if places else 0)
        message = self._advice(site, name, _before(found, index), names)
        yield Mistake(at + found[index].at, message, self._severity(site, names))

    def _severity(self, site: ExpressionSite, names: Names) -> Severity:
        return "warning" if names.dynamic or site.task in self.lenient else "error"

    def _advice(self, site: ExpressionSite, name: str, before: str, names: Names) -> str:
        can_use = visible(site, names, self.prefix)
        if can_use is AT_THE_START and name in names.flat:
            return f"{name!r} is not there yet: the defaults can use inputs, now() and uuid() only"
        if name in SECTIONS:
            return f"unknown name {name!r}: names are flat in expressions, so {name}.files is written files"
        if name in ELSEWHERE:
            return f"{name!r} is not known here: it exists {ELSEWHERE[name]}"
        if name in names.inputs:
            return f"unknown name {name!r}; did you mean 'inputs.{name}'?"
        near = get_close_matches(name, FILTERS if before == "|" else sorted(can_use), 1)
        if near:
            return f"unknown name {name!r}; did you mean {near[0]!r}?"
        return f"unknown name {name!r}: no field has it, and no step writes it"

    def _inputs(self, site: ExpressionSite, at: int, found: list[Token], names: Names) -> Iterator[Mistake]:
        """`inputs.x` for an x that nobody declares. A field of `raw` may be given by a workflow that includes this."""
        declared = set(names.inputs)
        if site.task is not None and site.task in names.tasks:
            declared.update(names.tasks[site.task].inputs)
        for index in _mentions(found, "inputs"):
            name = _member(found, index)
            if name is None or name in declared or name in names.declared["raw"] or names.is_lost(name):
                continue
            place = at + found[index].at
            if not declared:
                yield Mistake(place, f"no inputs are declared: inputs.{name} is always undefined", "warning")
                continue
            near = get_close_matches(name, sorted(declared), 1)
            advice = f"did you mean {near[0]!r}?" if near else f"there is: {', '.join(sorted(declared))}"
            yield Mistake(place, f"unknown input {name!r}; {advice}", self._severity(site, names))


def _offset(source: str, line: int | None, column: int | None) -> int:
    lines = source.split("\n")
    if line is None or not 1 <= line <= len(lines):
        return 0
    return min(sum(len(row) + 1 for row in lines[: line - 1]) + max((column or 1) - 1, 0), len(source))


def _mentions(found: list[Token], name: str) -> Iterator[int]:
    """Where a word stands that is not the name of a property."""
    for index, token in enumerate(found):
        if token.kind == "word" and token.text == name and _before(found, index) not in (".", "?."):
            yield index


def _before(found: list[Token], index: int) -> str:
    return found[index - 1].text if index else ""


def _after(found: list[Token], index: int) -> str:
    return found[index + 1].text if index + 1 < len(found) else ""


def _member(found: list[Token], index: int) -> str | None:
    """The property that is taken of a name, where it stands in the source."""
    following = found[index + 2] if index + 2 < len(found) else None
    if following is not None and _after(found, index) in (".", "?.") and following.kind == "word":
        return following.text
    if following is not None and _after(found, index) == "[" and following.kind == "string":
        return following.text[1:-1] if _after(found, index + 2) == "]" else None
    return None
