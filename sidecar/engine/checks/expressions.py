"""Mistakes in expressions: what JavaScript cannot read, names that nobody knows, values that a shell would run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, NamedTuple

from sidecar.engine.checks import names as known
from sidecar.errors import ExpressionError, ShellError, TemplateError
from sidecar.model.language import Role
from sidecar.model.steps import AgentShellCommand, ShellCommand
from sidecar.state import javascript, shell
from sidecar.state.javascript import FILTERS, Placeholder, split_template
from sidecar.state.paths import PathError, compile_path
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.engine.checks.names import Names
    from sidecar.model.expressions import Site
    from sidecar.state.javascript import Token
    from sidecar.state.script import Script

Severity = Literal["error", "warning"]
_CODE = frozenset({Role.TRANSFORM, Role.CHECK})


class Mistake(NamedTuple):
    """What is wrong, or doubtful, at an offset of a text."""

    offset: int
    message: str
    severity: Severity = "error"


@dataclass(slots=True)
class Expressions:
    """The check of one file. `lenient`: tasks for importers, who may know names that this file does not."""

    script: Script
    prefix: int  # how much of a location is the wrapper
    names: Names
    lent: Names  # the same, for the tasks: with what the importers have
    lenient: frozenset[str] = frozenset()

    def check(self, site: Site) -> Iterator[Mistake]:
        """Everything that is wrong with one text."""
        if site.role is Role.SOURCE:
            return  # a path of the state: it is checked with the computed fields
        if site.role is Role.PATTERN:
            yield from self._pattern(site)
        elif site.role in _CODE:
            yield from self._code(site, site.text, 0)
        else:
            yield from self._template(site)

    def _template(self, site: Site) -> Iterator[Mistake]:
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

    def _command(self, site: Site) -> Iterator[Mistake]:
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

    def _pattern(self, site: Site) -> Iterator[Mistake]:
        program = self.script.compile(f"new RegExp({json.dumps(site.text)}), 0")
        world = World(self.script)
        try:
            world.run(program)
        except ExpressionError as error:
            yield Mistake(0, f"not a regular expression: {error.message}")
        finally:
            world.close()

    def _code(self, site: Site, source: str, at: int) -> Iterator[Mistake]:
        """Check JavaScript that stands at an offset of the text."""
        try:
            program = self.script.compile(source)
        except ExpressionError as error:
            yield Mistake(at + _offset(source, error.line, error.column), error.message)
            return
        names = self.names if site.task is None else self.lent
        visible = known.visible(site, names, self.prefix)
        unknown = [name for name in program.names if name not in visible and not names.is_lost(name)]
        if unknown or "inputs" in program.names:
            found = javascript.scan(source).tokens
            for name in unknown:
                yield from self._unknown(site, name, at, found, names)
            if "inputs" in program.names:
                yield from self._inputs(site, at, found, names)

    def _unknown(self, site: Site, name: str, at: int, found: list[Token], names: Names) -> Iterator[Mistake]:
        places = list(_mentions(found, name))
        if any(_before(found, index) == "typeof" for index in places):
            return  # the author asks whether there is one
        index = next((index for index in places if _after(found, index) != ":"), places[0] if places else 0)
        message = self._advice(site, name, _before(found, index), names)
        yield Mistake(at + found[index].at, message, self._severity(site, names))

    def _severity(self, site: Site, names: Names) -> Severity:
        return "warning" if names.dynamic or site.task in self.lenient else "error"

    def _advice(self, site: Site, name: str, before: str, names: Names) -> str:
        visible = known.visible(site, names, self.prefix)
        if visible is known.AT_THE_START and name in names.flat:
            return f"{name!r} is not there yet: the defaults can use inputs, now() and uuid() only"
        if name in known.SECTIONS:
            return f"unknown name {name!r}: names are flat in expressions, so {name}.files is written files"
        if name in known.ELSEWHERE:
            return f"{name!r} is not known here: it exists {known.ELSEWHERE[name]}"
        if name in names.inputs:
            return f"unknown name {name!r}; did you mean 'inputs.{name}'?"
        near = get_close_matches(name, FILTERS if before == "|" else sorted(visible), 1)
        if near:
            return f"unknown name {name!r}; did you mean {near[0]!r}?"
        return f"unknown name {name!r}: no field has it, and no step writes it"

    def _inputs(self, site: Site, at: int, found: list[Token], names: Names) -> Iterator[Mistake]:
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
