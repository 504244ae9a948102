"""The names in expressions: which ones exist at a place, which are constant, and the mistakes in an expression."""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from sidecar.analysis import commands
from sidecar.analysis.commands import Mistake, Severity
from sidecar.catalog.workflows import Definition
from sidecar.engine.evaluation import Texts
from sidecar.engine.run import WorkflowState
from sidecar.errors import ExpressionError, ShellError, SidecarError, TemplateError
from sidecar.model import steps as step_types
from sidecar.model.language import Role, has_template
from sidecar.model.steps import AgentShellCommand, ShellCommand, StepBase
from sidecar.model.workflow import ExpressionSite, SubAgentTask, walk
from sidecar.state import shell
from sidecar.state.javascript import FILTERS, Placeholder, Token, scan, split_template
from sidecar.state.paths import PathError, compile_path
from sidecar.state.reactive import SECTIONS, Graph
from sidecar.state.script import Expression, Script
from sidecar.state.template import Slot, as_text
from sidecar.state.world import World

# Every expression has these. `feedback` is the text that `resume` was given, null before that.
ALWAYS_VISIBLE = frozenset({"inputs", "now", "uuid", "feedback"})
_VISIBLE_IN_DEFAULTS = frozenset({"inputs", "now", "uuid"})
# Names that exist in some places only, and where.
_VISIBLE_IN = {
    "item": "inside `foreach` and in the tasks of `parallel_foreach`",
    "index": "inside `foreach` and in the tasks of `parallel_foreach`; inside `while` it is loop.index",
    "loop": "inside `while` and `foreach`",
    "result": "in the `state_update` of a step that has a result",
    "applied_count": "in the `state_update` of `apply_hints`",
    "error": "in `error_state_update`, `on_failure` and `cleanup_on_error`",
    "input": "in the `transform` and the `validate` of a computed field",
    "output": "in the `validate` of a computed field",
}


def _no_fields() -> dict[str, frozenset[str]]:
    return dict.fromkeys(SECTIONS, frozenset[str]())


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a definition gives to all of its expressions. `fields` are those that the schema declares, that
    have a default, or that a step writes."""

    inputs: frozenset[str] = frozenset()
    fields: dict[str, frozenset[str]] = field(default_factory=_no_fields)  # by section
    declared: dict[str, frozenset[str]] = field(default_factory=_no_fields)  # those of the schema and the defaults
    included: frozenset[str] = frozenset()  # the ids of `include_workflow` steps
    dynamic: bool = False  # some step writes a field whose name is an expression
    tasks: dict[str, SubAgentTask] = field(default_factory=dict)
    invalid_words: tuple[Container[str], ...] = ()  # of the invalid parts of the file, which may declare names

    def may_declare(self, name: str) -> bool:
        """Whether an invalid part of the file may declare the name."""
        return any(name in words for words in self.invalid_words)

    @property
    def state_names(self) -> frozenset[str]:
        """The names of the fields, and of the included workflows."""
        return self.included.union(*self.fields.values())

    def with_importer(self, importer: Names) -> Names:
        """The names that tasks of this file have in the workflow that imports them."""
        return replace(
            self,
            inputs=self.inputs | importer.inputs,
            fields={section: self.fields[section] | importer.fields[section] for section in SECTIONS},
            included=self.included | importer.included,
            dynamic=self.dynamic or importer.dynamic,
            invalid_words=self.invalid_words + importer.invalid_words,
        )


def names_of(definition: Definition) -> Names:
    """The names that a file declares, and the fields that the tasks write that it imports."""
    workflow, declared = definition.workflow, definition.workflow.declared
    imported = [site for file in definition.imports.values() for site in file.sites() if site.task is not None]
    texts = [site.text for site in (*definition.sites(), *imported) if site.role is Role.PATH]
    texts.append(workflow.error_handling.collects_in or "")
    written = {pair for pair in map(written_field, texts) if pair is not None}
    fields = {
        section: declared[section] | {name for where, name in written if where == section and name is not None}
        for section in SECTIONS
    }
    return Names(
        inputs=frozenset(workflow.inputs),
        fields=fields,
        declared=declared,
        included=frozenset(step.id for step, _ in walk(workflow) if isinstance(step, step_types.IncludeWorkflow)),
        dynamic=any(name is None for _, name in written),
        tasks=workflow.sub_agent_tasks or {},
        invalid_words=invalid_words(definition),
    )


def invalid_words(definition: Definition) -> tuple[Container[str], ...]:
    """The words in the invalid parts of a file and of those that it imports."""
    return (definition.lost, *(imported.lost for imported in definition.imports.values()))


def written_field(path: str) -> tuple[str, str | None] | None:
    """The section and the field that a path writes. The field is None where it is an expression; no path: None."""
    try:
        first, second = compile_path(path, lambda source: Expression(source, (), (), "", 0)).segments[:2]
    except (PathError, ExpressionError):  # a mistake that `Expressions` reports
        return None
    section = "" if isinstance(first, int) else first.text
    return section, None if isinstance(second, int) or second.slots else second.text


def visible(site: ExpressionSite, names: Names) -> Collection[str]:
    """Every name that an expression at a site can use."""
    if site.location[0] == "default_state":
        return _VISIBLE_IN_DEFAULTS
    return names.state_names | ALWAYS_VISIBLE | set(_from_outside(site, names)) | set(_from_key(site))


def _from_outside(site: ExpressionSite, names: Names) -> Iterator[str]:
    """The names that the loops, the task and the error handling around a site give."""
    for step in site.steps[:-1]:
        if isinstance(step, step_types.ForEach):
            yield from ("item", "index", "loop")
        elif isinstance(step, step_types.While):
            yield "loop"
    if site.task is not None:
        yield from ("item", "index")
        if site.location[2] != "inputs" and site.task in names.tasks:
            yield from names.tasks[site.task].inputs
    handling = site.location[2:4] if site.task is not None else site.location[:2]
    if site.steps and handling in (("error_handling", "on_failure"), ("error_handling", "cleanup_on_error")):
        yield "error"


def _from_key(site: ExpressionSite) -> Iterator[str]:
    """The names that only the expressions under one key of a step or a field have."""
    if site.role in (Role.TRANSFORM, Role.CHECK):
        yield "input"
    if site.role is Role.CHECK:
        yield "output"
    key = site.location[site.depth] if site.steps else ""
    if key == "state_update" and isinstance(site.step, step_types.Fallible):
        yield "result"
        if isinstance(site.step, step_types.ApplyHints):
            yield "applied_count"
    elif key == "error_state_update":
        yield "error"
    elif key == "sub_agent_prompt_override" and isinstance(site.step, step_types.ParallelForEach):
        yield from ("item", "index", "task_id", "workflow_id", "description")
    elif key == "condition" and isinstance(site.step, step_types.While):
        yield "loop"


# --- constants


class Constants:
    """The names of one definition that are constant: no step, no clock and no resume changes their value. Without
    `state` there are none, because the inputs are not known then."""

    def __init__(self, definition: Definition, texts: Texts, state: WorkflowState | None) -> None:
        self.texts = texts
        self._view = None if state is None else state.view({})
        self._names: set[str] = set()
        self._writers: dict[str, list[str]] = {}  # the ids of the steps that write a name
        # By the identity of the step: imported tasks may repeat an id.
        self._sites: dict[int, list[ExpressionSite]] = {}
        schema, defaults = definition.workflow.state_schema, definition.workflow.default_state
        declared = {section: definition.workflow.declared[section] for section in ("state", "raw")}
        graph = Graph({name: computed.sources for name, computed in schema.computed.items()})
        changing = self._collect_writers(definition, declared, graph)
        if state is None:
            return
        changing |= {f"raw.{name}" for name in state.engine_fields}
        for section, values in (("state", defaults.state), ("raw", defaults.raw)):
            changing |= {f"{section}.{name}" for name, value in values.items() if self._read_by(value) - {"inputs"}}
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

    def value(self, value: Any, hidden: Collection[str], problems: list[str]) -> tuple[Any, bool]:
        """A value of the definition with its constant expressions evaluated, and whether these are all. `hidden` are
        names that loops and tasks give; an expression that fails is added to the problems."""
        if isinstance(value, dict):
            entries = {key: self.value(item, hidden, problems) for key, item in value.items()}
            return {key: item for key, (item, _) in entries.items()}, all(whole for _, whole in entries.values())
        if isinstance(value, list | tuple):
            items = [self.value(item, hidden, problems) for item in value]
            return [item for item, _ in items], all(whole for _, whole in items)
        if not isinstance(value, str) or not has_template(value):
            return value, True
        try:
            parts = self.texts.value(value).parts
        except SidecarError as error:
            problems.append(str(error))
            return value, False
        values = [part if isinstance(part, str) else self.slot(part, hidden, problems) for part in parts]
        is_whole = all(one is not shell.UNKNOWN for one in values)
        filled = [one for part, one in zip(parts, values, strict=True) if not isinstance(part, str) or part.strip()]
        if is_whole and len(filled) == 1:
            return filled[0], True
        texts = [
            part.placeholder.text if one is shell.UNKNOWN else as_text(one)
            for part, one in zip(parts, values, strict=True)
        ]
        return "".join(texts), is_whole

    def slot(self, slot: Slot, hidden: Collection[str], problems: list[str], *, is_filtered: bool = True) -> Any:
        """The value of an expression in a text, or UNKNOWN."""
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

    def _collect_writers(self, definition: Definition, declared: dict[str, frozenset[str]], graph: Graph) -> set[str]:
        """Record which steps write which names. The fields that are written, each with its section."""
        written = set()
        for site in (site for file in (definition, *definition.imports.values()) for site in file.sites()):
            if site.step is None:
                continue
            self._sites.setdefault(id(site.step), []).append(site)
            section, name = (written_field(site.text) if site.role is Role.PATH else None) or ("", None)
            for one in declared.get(section, ()) if name is None else (name,):
                key = f"{section}.{one}"
                written.add(key)
                for changed in (key, *graph.dependencies(key).dependents):
                    self._writers.setdefault(changed.partition(".")[2], []).append(site.step.id)
        for step, _ in walk(definition.workflow):
            if isinstance(step, step_types.IncludeWorkflow):
                self._writers.setdefault(step.id, []).append(step.id)
        section, name = written_field(definition.workflow.error_handling.collects_in or "") or ("", None)
        written.add(f"{section}.{name}")
        return written

    def _read_by(self, value: object) -> set[str]:
        """The names that the templates of a value read."""
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return {name for one in inner for name in self._read_by(one)}
        try:
            return set(self.texts.value(value).names) if isinstance(value, str) and has_template(value) else set()
        except SidecarError:
            return set()


# --- mistakes in expressions


def as_template(condition: str) -> str:
    """A condition with braces around it; it may stand without."""
    return condition if has_template(condition) else f"{{{{ {condition}\n}}}}"


def bare(expression: str) -> str:
    """An expression without the braces around it."""
    text = expression.strip()
    inner = text.removeprefix("{{").removesuffix("}}")
    return inner.strip() if len(inner) == len(text) - 4 and "{{" not in inner else text


@dataclass(slots=True)
class Expressions:
    """Checks the expressions of one file. `lenient`: tasks for importers, which may have names that it does not."""

    script: Script
    names: Names
    task_names: Names  # for its tasks: with those of the importers
    lenient: frozenset[str] = frozenset()

    def check(self, site: ExpressionSite) -> Iterator[Mistake]:
        """Every mistake in one text."""
        if site.role is Role.SOURCE:
            return  # a path of the state: it is checked with the computed fields
        if site.role is Role.PATTERN:
            yield from self._pattern(site)
        elif site.role in (Role.TRANSFORM, Role.CHECK):
            yield from self._code(site, site.text, 0)
        else:
            yield from self._template(site)

    def _template(self, site: ExpressionSite) -> Iterator[Mistake]:
        try:
            parts = split_template(site.text)
        except TemplateError as error:
            yield Mistake(error.offset, error.message)
            return
        placeholders = [part for part in parts if isinstance(part, Placeholder)]
        if site.role is Role.CONDITION and not placeholders:
            yield from self._code(site, site.text, 0)
            return
        for placeholder in placeholders:
            yield from self._code(site, placeholder.source, placeholder.source_offset)
        is_sole = len(placeholders) == 1 and not any(part.strip() for part in parts if isinstance(part, str))
        if site.role in (Role.CONDITION, Role.ITEMS) and not is_sole:
            what = "a condition, and text is always true" if site.role is Role.CONDITION else "a list"
            yield Mistake(0, f"{{{{ }}}} among other text is text, not {what}: put all of it into one {{{{ }}}}")
        if site.role is Role.COMMAND:
            yield from self._command(site)
        if site.role is Role.PATH:
            try:
                compile_path(site.text, self.script.compile)
            except PathError as error:
                yield Mistake(0, str(error))
            except ExpressionError:
                pass  # in a placeholder: it was checked above

    def _command(self, site: ExpressionSite) -> Iterator[Mistake]:
        """Of a list, each element is a site; whether it is the script of a shell depends on the whole list."""
        element, step = site.location[-1], site.step
        command = step.command if isinstance(step, ShellCommand | AgentShellCommand) else site.text
        try:
            yield from commands.check(site.text)[0] if isinstance(element, str) else commands.check(command)[element]
        except ShellError as error:
            yield Mistake(0, str(error))

    def _pattern(self, site: ExpressionSite) -> Iterator[Mistake]:
        world = World(self.script)
        try:
            world.run(self.script.compile(f"new RegExp({json.dumps(site.text)}), 0"))
        except ExpressionError as error:
            yield Mistake(0, f"not a regular expression: {error.message}")
        finally:
            world.close()

    def _code(self, site: ExpressionSite, source: str, at: int) -> Iterator[Mistake]:
        """The mistakes in JavaScript that stands at an offset of the text."""
        try:
            program = self.script.compile(source)
        except ExpressionError as error:
            yield Mistake(at + _offset(source, error.line, error.column), error.message)
            return
        names = self.names if site.task is None else self.task_names
        usable = visible(site, names)
        unknown = [name for name in program.names if name not in usable and not names.may_declare(name)]
        if unknown or "inputs" in program.names:
            tokens = scan(source).tokens
            for name in unknown:
                yield from self._unknown(site, name, at, tokens, names)
            if "inputs" in program.names:
                yield from self._inputs(site, at, tokens, names)

    def _unknown(
        self, site: ExpressionSite, name: str, at: int, tokens: list[Token], names: Names
    ) -> Iterator[Mistake]:
        places = list(_mentions(tokens, name))
        if any(_text(tokens, index - 1) == "typeof" for index in places):
            return  # the author asks whether it exists
        index = next((index for index in places if _text(tokens, index + 1) != ":"), places[0] if places else 0)
        message = self._advice(site, name, _text(tokens, index - 1), names)
        yield Mistake(at + tokens[index].at, message, self._severity(site, names))

    def _severity(self, site: ExpressionSite, names: Names) -> Severity:
        return "warning" if names.dynamic or site.task in self.lenient else "error"

    def _advice(self, site: ExpressionSite, name: str, before: str, names: Names) -> str:
        usable = visible(site, names)
        if usable is _VISIBLE_IN_DEFAULTS and name in names.state_names:
            return f"{name!r} is not there yet: the defaults can use inputs, now() and uuid() only"
        if name in SECTIONS:
            return f"unknown name {name!r}: names are flat in expressions, so {name}.files is written files"
        if name in _VISIBLE_IN:
            return f"{name!r} is not known here: it exists {_VISIBLE_IN[name]}"
        if name in names.inputs:
            return f"unknown name {name!r}; did you mean 'inputs.{name}'?"
        near = get_close_matches(name, FILTERS if before == "|" else sorted(usable), 1)
        if near:
            return f"unknown name {name!r}; did you mean {near[0]!r}?"
        return f"unknown name {name!r}: no field has it, and no step writes it"

    def _inputs(self, site: ExpressionSite, at: int, tokens: list[Token], names: Names) -> Iterator[Mistake]:
        """`inputs.x` for an x that is not declared. A field of `raw` can be set by a workflow that includes this."""
        declared = set(names.inputs)
        if site.task is not None and site.task in names.tasks:
            declared.update(names.tasks[site.task].inputs)
        for index in _mentions(tokens, "inputs"):
            name = _member(tokens, index)
            if name is None or name in declared or name in names.declared["raw"] or names.may_declare(name):
                continue
            place = at + tokens[index].at
            if not declared:
                yield Mistake(place, f"no inputs are declared: inputs.{name} is always undefined", "warning")
                continue
            near = get_close_matches(name, sorted(declared), 1)
            advice = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(sorted(declared))}"
            yield Mistake(place, f"unknown input {name!r}; {advice}", self._severity(site, names))


def _offset(source: str, line: int | None, column: int | None) -> int:
    lines = source.split("\n")
    if line is None or not 1 <= line <= len(lines):
        return 0
    return min(sum(len(row) + 1 for row in lines[: line - 1]) + max((column or 1) - 1, 0), len(source))


def _mentions(tokens: list[Token], name: str) -> Iterator[int]:
    """The indexes of a word that is not the name of a property."""
    for index, token in enumerate(tokens):
        if token.kind == "word" and token.text == name and _text(tokens, index - 1) not in (".", "?."):
            yield index


def _text(tokens: list[Token], index: int) -> str:
    return tokens[index].text if 0 <= index < len(tokens) else ""


def _member(tokens: list[Token], index: int) -> str | None:
    """The property that is read from the name at an index, where it stands in the source."""
    member = tokens[index + 2] if index + 2 < len(tokens) else None
    if member is not None and _text(tokens, index + 1) in (".", "?.") and member.kind == "word":
        return member.text
    if member is not None and _text(tokens, index + 1) == "[" and member.kind == "string":
        return member.text[1:-1] if _text(tokens, index + 3) == "]" else None
    return None
