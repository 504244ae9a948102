"""Templates filled in for somebody who wants to see what they came to: each `{{ }}` is kept beside its value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.errors import ExpressionError, StepFailed
from sidecar.model import duration
from sidecar.model.language import has_template
from sidecar.state import paths
from sidecar.state.template import Slot, as_text, filtered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.engine.evaluation import View
    from sidecar.state.script import Expression

LARGEST_VALUE_BYTES = 64 * 1024
_BEGINNING = 1000  # characters that are left of a larger one
# Known only once the step is done.
_LATER = frozenset({"result", "applied_count", "error"})


class Filling:
    """The texts of one step. Each expression is evaluated once: a second `uuid()` would be another."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.lone: list[str] = []  # expressions that stood alone in a value
        self._found: dict[str, Any] = {}

    @property
    def replacements(self) -> dict[str, Any]:
        """What each `{{ }}` came to, as it is written in the definition; of a large value the beginning."""
        return {text: _bounded(value) for text, value in self._found.items()}

    def value(self, given: Any) -> Any:
        """A value of the definition, as `View.value` gives it."""
        if isinstance(given, str):
            return self._text(given) if has_template(given) else given
        if isinstance(given, dict):
            return {self.text(key): self.value(item) for key, item in given.items()}
        if isinstance(given, list | tuple):
            return [self.value(item) for item in given]
        return given

    def text(self, given: str) -> str:
        """A text of the definition, whatever its templates yield."""
        return as_text(self.value(given))

    def seconds(self, given: float | str | None, key: str) -> float | None:
        """A duration of the definition that is longer than nothing; None where there is none."""
        if not isinstance(given, str):
            return given
        found = self.value(given)
        try:
            seconds_s = None if found is None else duration.seconds(found)
        except ValueError as error:
            raise StepFailed(f"{key}: {error}") from None
        if seconds_s == 0:
            raise StepFailed(f"{key} has to be longer than nothing")
        return seconds_s

    def command(self, command: str | tuple[str, ...]) -> str:
        """A command as one text for another shell, which reads no value in it as code."""
        compiled = self.view.texts.command(command)
        shown = compiled.prepare(self._noting(compiled.placeholders, compiled.slots, self._found)).standalone()
        try:
            shown.encode()
        except UnicodeEncodeError:
            message = "the command holds a name that is no UTF-8, so it cannot be handed out; use `shell_command`"
            raise StepFailed(message) from None
        return shown

    def path(self, text: str) -> str:
        """Where a write will go; as it is written where that cannot be known before the step is done."""
        if not has_template(text):
            return text
        compiled = self.view.texts.path(text)
        if not _LATER.isdisjoint(compiled.names):
            return text
        slots = [slot for segment in compiled.segments if not isinstance(segment, int) for slot in segment.slots]
        found: dict[str, Any] = {}
        try:
            shown = paths.show(compiled.resolve(self._noting(_written(text, slots), slots, found)))
        except ExpressionError:  # it may read what the agent is going to write
            return text
        self._found |= found
        return shown

    def _text(self, text: str) -> Any:
        compiled = self.view.texts.value(text)
        standing = [part for part in compiled.parts if not isinstance(part, str) or part.strip()]
        if len(standing) == 1:
            self.lone.append(standing[0].placeholder.source)
        return compiled.render(self._noting(_written(text, compiled.slots), compiled.slots, self._found))

    def _noting(
        self, written: Sequence[str], slots: Sequence[Slot], found: dict[str, Any]
    ) -> Callable[[Expression], Any]:
        """Runs programs in the order of their slots, which is the order in which a text is rendered."""
        left = zip(written, slots, strict=True)

        def run(program: Expression) -> Any:
            text, slot = next(left)
            value = self.view.run(program)
            found[text] = filtered(value, slot.placeholder.filters, slot.placeholder.offset)
            return value

        return run


def _written(text: str, slots: Sequence[Slot]) -> list[str]:
    """Each `{{ }}` as it stands in the definition."""
    return [text[slot.placeholder.offset : slot.placeholder.end] for slot in slots]


def _bounded(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    size = len(text.encode("utf-8", "surrogatepass"))
    if size <= LARGEST_VALUE_BYTES:
        return value
    return f"{text[:_BEGINNING]}… (cut: {size} bytes in all, and `definition` has the whole)"
