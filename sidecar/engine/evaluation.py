"""Evaluates the texts of a definition at one place of a run: templates, conditions, durations, paths, commands."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sidecar.errors import StepFailed
from sidecar.model import duration
from sidecar.model.language import has_template
from sidecar.model.steps import Update
from sidecar.state import paths, shell, template
from sidecar.state.paths import compile_path
from sidecar.state.reactive import Write
from sidecar.state.script import Expression, Script
from sidecar.state.shell import ArgumentList, PreparedCommand, ShellText
from sidecar.state.values import truthy
from sidecar.state.world import Returns, World

_CLOCK = frozenset({"now", "uuid"})
_UUIDS = 32  # different ones for one expression


class Texts:
    """Compiles the texts of a run's definitions, each once."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._known: dict[tuple[str, Any], Any] = {}

    def program(self, source: str) -> Expression:
        """A bare expression."""
        return self._script.compile(source)

    def value(self, text: str) -> Any:
        """A text with `{{ }}`."""
        return self._once("value", text, template.compile_text)

    def command(self, command: str | tuple[str, ...]) -> ShellText | ArgumentList:
        """A command: a text for the shell, or a list."""
        found: ShellText | ArgumentList
        found = self._once("command", command, shell.compile_command)
        return found

    def path(self, text: str) -> Any:
        """A path of the state."""
        return self._once("path", text, compile_path)

    def _once(self, kind: str, text: Any, read: Callable[[Any, Callable[[str], Expression]], Any]) -> Any:
        found = self._known.get((kind, text))
        if found is None:
            found = self._known[kind, text] = read(text, self._script.compile)
        return found


class View(NamedTuple):
    """The values visible at one place of a run: the state, and the names that loops and tasks add."""

    texts: Texts
    world: World
    names: Mapping[str, Any]

    def with_names(self, **names: Any) -> View:
        """The same place with more names, such as `result` or `error`."""
        return View(self.texts, self.world, {**self.names, **names})

    def run(self, program: Expression) -> Any:
        """The value of an expression."""
        names = self.names
        if not _CLOCK.isdisjoint(program.names):
            names = {**_clock(), **names}
        return self.world.run(program, names)

    def value(self, given: Any) -> Any:
        """A value of the definition with every template in it rendered. A lone `{{ }}` yields its typed value."""
        if isinstance(given, str):
            return self.rendered(given) if has_template(given) else given
        if isinstance(given, dict):
            return {self.text(key): self.value(item) for key, item in given.items()}
        if isinstance(given, list | tuple):
            return [self.value(item) for item in given]
        return given

    def rendered(self, text: str) -> Any:
        """The value of a text that has templates."""
        return self.texts.value(text).render(self.run)

    def text(self, given: str) -> str:
        """A text of the definition with its templates rendered."""
        return template.as_text(self.value(given))

    def truth(self, condition: str | bool) -> bool:
        """Whether a condition holds, with or without `{{ }}` around it."""
        if isinstance(condition, bool):
            return condition
        return truthy(self.rendered(condition) if has_template(condition) else self.run(self.texts.program(condition)))

    def seconds(self, given: float | str | None) -> float | None:
        """A duration of the definition, in seconds."""
        if isinstance(given, str):
            found = self.value(given)
            return None if found is None else duration.seconds(found)
        return given

    def command(self, command: str | tuple[str, ...]) -> PreparedCommand:
        """A command with its values in the environment, where the shell reads none of them as code."""
        return self.texts.command(command).prepare(self.run)

    def path(self, text: str) -> paths.Path:
        """The path of a write."""
        resolved: paths.Path = self.texts.path(text).resolve(self.run)
        return resolved

    def writes(self, updates: Sequence[Update]) -> list[Write]:
        """The writes of a step; an update without a value writes `result`, or adds 1."""
        found = []
        for update in updates:
            default = 1 if update.operation == "increment" else self.names.get("result")
            value = self.value(update.value) if update.has_value else default
            found.append(Write(self.path(update.path), value, update.operation))
        return found


def _clock() -> dict[str, object]:
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"now": Returns((moment,)), "uuid": Returns(tuple(str(uuids.uuid4()) for _ in range(_UUIDS)))}


def positive_s(view: View, given: float | str | None, key: str) -> float | None:
    """A duration above 0, in seconds; None where there is none, or a template yields null. StepFailed names the key."""
    found = duration_s(view, given, key)
    if found == 0:
        raise StepFailed(f"{key} has to be longer than nothing")
    return found


def duration_s(view: View, given: float | str | None, key: str) -> float | None:
    """The same for a duration that may be 0."""
    try:
        return view.seconds(given)
    except ValueError as error:
        raise StepFailed(f"{key}: {error}") from None
