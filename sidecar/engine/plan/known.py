"""What is known of a run before it begins: values that no step has changed yet, and texts with these filled in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sidecar.engine.evaluation import Texts, View
from sidecar.errors import ExpressionError, SidecarError
from sidecar.model import duration
from sidecar.model.language import Role, has_template
from sidecar.state import javascript
from sidecar.state.javascript import Placeholder, split_template
from sidecar.state.paths import show
from sidecar.state.template import Slot, as_text
from sidecar.state.values import truthy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sidecar.model.expressions import Site
    from sidecar.state.reactive import Graph
    from sidecar.state.script import Expression
    from sidecar.state.world import World

INPUTS = "inputs"
INCLUDED = "included"  # the section, so to speak, of what an included workflow leaves behind
_FIELDS = frozenset({"raw", "state"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What a text of the definition comes to. Where it is not known: the text, with what is known filled in.

    `problems`: what a run with these values would fail with.
    """

    value: Any
    known: bool = True
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """That a step writes a field; without a name it is one that only the run knows. `by` is the step's id."""

    section: str
    name: str | None
    by: str


@dataclass(frozen=True, slots=True)
class Known:
    """One place of a plan: which names still have the value that they began with."""

    texts: Texts
    world: World
    graph: Graph  # of all computed fields
    fields: Mapping[str, frozenset[str]]  # by section: those that are declared or begun with
    names: frozenset[str]
    unknown_inputs: frozenset[str] = frozenset()  # a workflow that is included may get some of them from the run
    writers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of names that are not known
    added: Mapping[str, Any] = field(default_factory=dict)  # what the place adds, with values that are known

    # --- what is known

    def without(self, written: Iterable[Written]) -> Known:
        """Behind, or beside, steps that write: the fields, and all that is computed from them, are not known."""
        names, writers = set(self.names), dict(self.writers)
        for one in written:
            for name in self._touched(one):
                names.discard(name)
                writers[name] = tuple(dict.fromkeys((*writers.get(name, ()), one.by)))
        return replace(self, names=frozenset(names), writers=writers)

    def hiding(self, *names: str) -> Known:
        """Inside something that gives these names values which only the run knows."""
        return replace(
            self,
            names=self.names - set(names),
            writers={name: by for name, by in self.writers.items() if name not in names},
            added={name: value for name, value in self.added.items() if name not in names},
        )

    def giving(self, values: Mapping[str, Any]) -> Known:
        """Inside something that gives these names these values."""
        hidden = self.hiding(*values)
        return replace(hidden, added={**hidden.added, **values})

    def writers_of(self, site: Site) -> Iterator[str]:
        """The ids of the steps that wrote what a text reads."""
        for name in sorted(self._names_of(site)):
            if name not in self.added:
                yield from self.writers.get(name, ())

    def knows(self, program: Expression) -> bool:
        """Whether everything that an expression reads is known."""
        return all(self._knows_name(name, program) for name in program.names)

    # --- what texts come to

    def value(self, given: Any) -> Seen:
        """Any value of the definition."""
        if isinstance(given, str):
            return self._text(given) if has_template(given) else Seen(given)
        if isinstance(given, dict):
            keys = [self.text(key) for key in given]
            items = [self.value(item) for item in given.values()]
            return _together(
                dict(zip((key.value for key in keys), (item.value for item in items), strict=True)), *keys, *items
            )
        if isinstance(given, list | tuple):
            items = [self.value(item) for item in given]
            return _together([item.value for item in items], *items)
        return Seen(given)

    def text(self, given: str) -> Seen:
        """A text of the definition, whatever its templates yield."""
        seen = self.value(given)
        return replace(seen, value=as_text(seen.value))

    def truth(self, condition: str | bool) -> Seen:
        """Whether a condition holds; its expression where that is not known."""
        if isinstance(condition, bool):
            return Seen(condition)
        if has_template(condition):
            seen = self.value(condition)
            return Seen(truthy(seen.value)) if seen.known else replace(seen, value=bare(condition))
        try:
            program = self.texts.program(condition)
            return Seen(truthy(self.run(program))) if self.knows(program) else Seen(bare(condition), known=False)
        except SidecarError as error:
            return Seen(bare(condition), known=False, problems=(str(error),))

    def seconds(self, given: float | str | None) -> Seen:
        """A duration, in seconds."""
        if not isinstance(given, str):
            return Seen(given)
        seen = self.value(given)
        if not seen.known or seen.value is None:
            return seen
        try:
            return Seen(duration.seconds(seen.value))
        except ValueError as error:
            return Seen(given, known=False, problems=(str(error),))

    def path(self, text: str) -> Seen:
        """Where a write goes."""
        try:
            compiled = self.texts.path(text)
            slots = [slot for one in compiled.segments if not isinstance(one, int) for slot in one.slots]
            if all(self.knows(slot.expression) for slot in slots):
                return Seen(show(compiled.resolve(self.run)))
        except SidecarError as error:
            return Seen(text, known=False, problems=(str(error),))
        return Seen(text, known=False)

    # --- how

    def _touched(self, one: Written) -> Iterator[str]:
        names = self.fields.get(one.section, ()) if one.name is None else (one.name,)
        for name in names:
            yield name
            if one.section in _FIELDS:
                dependents = self.graph.dependencies(show((one.section, name))).dependents
                yield from (dependent.removeprefix("computed.") for dependent in dependents)

    def _knows_name(self, name: str, program: Expression) -> bool:
        if name in self.added:
            return True
        if name not in self.names:
            return False
        if name != INPUTS or not self.unknown_inputs:
            return True
        read = inputs_read(program.source)
        return read is not None and self.unknown_inputs.isdisjoint(read)

    def _names_of(self, site: Site) -> frozenset[str]:
        try:
            if site.role in (Role.PATTERN, Role.SOURCE):
                return frozenset()
            if site.role is Role.PATH:
                return frozenset(self.texts.path(site.text).names)
            if site.role is Role.CONDITION and not has_template(site.text):
                return frozenset(self.texts.program(site.text).names)
            return frozenset(self.texts.value(site.text).names)
        except SidecarError:
            return frozenset()

    def run(self, program: Expression) -> Any:
        """The value of an expression that reads only what is known."""
        return View(self.texts, self.world, self.added).run(program)

    def _text(self, text: str) -> Seen:
        try:
            parts = self.texts.value(text).parts
        except SidecarError as error:
            return Seen(text, known=False, problems=(str(error),))
        filled = [part for part in parts if not isinstance(part, str) or part.strip()]
        if len(filled) == 1 and isinstance(filled[0], Slot):
            return self._part(filled[0], text)
        seen = [self._part(part, text) for part in parts]
        return _together("".join(as_text(one.value) for one in seen), *seen)

    def _part(self, part: str | Slot, text: str) -> Seen:
        if isinstance(part, str):
            return Seen(part)
        own = text[part.placeholder.offset : part.placeholder.end]
        if not self.knows(part.expression):
            return Seen(own, known=False)
        try:
            return Seen(part.value(self.run))
        except ExpressionError as error:
            return Seen(own, known=False, problems=(str(error),))


def bare(expression: str) -> str:
    """An expression without the braces around it."""
    try:
        parts = [part for part in split_template(expression) if not isinstance(part, str) or part.strip()]
    except SidecarError:
        return expression.strip()
    if len(parts) == 1 and isinstance(parts[0], Placeholder) and not parts[0].filters:
        return parts[0].source
    return expression.strip()


@lru_cache(maxsize=1024)
def inputs_read(source: str) -> frozenset[str] | None:
    """Which inputs an expression reads; None where it looks at all of them, or nobody can tell."""
    found = javascript.scan(source).tokens
    texts = [token.text for token in found] + ["", "", ""]
    read = set()
    for at, token in enumerate(found):
        if token.kind != "word" or token.text != INPUTS or (at and texts[at - 1] in (".", "?.")):
            continue
        if texts[at + 1] in (".", "?.") and found[at + 2 : at + 3] and found[at + 2].kind == "word":
            read.add(texts[at + 2])
        elif (
            texts[at + 1] == "["
            and texts[at + 3] == "]"
            and found[at + 2].kind == "string"
            and "\\" not in texts[at + 2]
        ):
            read.add(texts[at + 2][1:-1])
        else:
            return None
    return frozenset(read)


def _together(value: Any, *parts: Seen) -> Seen:
    problems = tuple(problem for part in parts for problem in part.problems)
    return Seen(value, all(part.known for part in parts), problems)
