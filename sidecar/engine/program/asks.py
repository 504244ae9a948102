"""Which fields of a step somebody has to evaluate before the cursor can go on, and what an answer has to be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.model import duration
from sidecar.model.language import has_template
from sidecar.model.steps import Exit, Fallible
from sidecar.model.steps_control import Conditional, ForEach, ParallelForEach, While

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.engine.program.actions import FieldName, Json
    from sidecar.model.steps import StepBase

Answers = dict[str, Any]


def to_enter(step: StepBase, answers: Mapping[str, Json]) -> FieldName | None:
    """The next field that is needed to begin a step; None: everything is known."""
    return _next(step, _fields_to_enter(step), answers)


def to_judge(step: StepBase, answers: Mapping[str, Json]) -> FieldName | None:
    """The next field that is needed to decide what becomes of a failed step."""
    retries = isinstance(step, Fallible) and step.on_error == "retry"
    return _next(step, ("retry_count", "retry_delay") if retries else (), answers)


def value(step: StepBase, field: FieldName, answers: Mapping[str, Json]) -> Any:
    """What a field comes to: the answer, else what the definition says."""
    return answers[field] if field in answers else _written(step, field)


def accepted(step: StepBase, field: FieldName, answer: Json) -> Json:
    """An answer as the cursor keeps it. ValueError says what was wrong with it."""
    if field == "retry_delay":
        try:
            return duration.seconds(answer)
        except ValueError as error:
            raise ValueError(f"`{field}` of step {step.id!r}: {error}") from None
    fits, expected = _fits(field, answer)
    if not fits:
        raise ValueError(f"`{field}` of step {step.id!r} has to be {expected}, not {_shown(answer)}")
    return answer


def _fields_to_enter(step: StepBase) -> tuple[FieldName, ...]:
    if isinstance(step, Conditional):
        return ("condition",)
    if isinstance(step, While):
        return ("max_iterations",)
    if isinstance(step, ForEach):
        return ("items",)
    if isinstance(step, ParallelForEach):
        retries = step.on_sub_agent_error.strategy == "retry_failed"
        return ("items", "max_parallel", "max_retries") if retries else ("items", "max_parallel")
    return ("message",) if isinstance(step, Exit) else ()


def _next(step: StepBase, fields: tuple[FieldName, ...], answers: Mapping[str, Json]) -> FieldName | None:
    return next((field for field in fields if field not in answers and is_open(step, field)), None)


def is_open(step: StepBase, field: FieldName) -> bool:
    """Whether a field has to be evaluated: a condition may be bare, and a list may have templates inside."""
    written = _written(step, field)
    if field == "condition":
        return isinstance(written, str)
    return field == "items" or has_template(written)


def _written(step: StepBase, field: FieldName) -> Any:
    if field == "max_retries":
        assert isinstance(step, ParallelForEach)
        return step.on_sub_agent_error.max_retries
    return getattr(step, "retry_delay_s" if field == "retry_delay" else field)


def _fits(field: FieldName, answer: Json) -> tuple[bool, str]:
    if field == "condition":
        return isinstance(answer, bool), "true or false"
    if field == "items":
        return isinstance(answer, list), "a list"
    if field == "message":
        return isinstance(answer, str), "a text"
    least = 0 if field in ("retry_count", "max_retries") else 1
    whole = isinstance(answer, int) and not isinstance(answer, bool)
    return whole and answer >= least, f"a whole number, {least} or more"


def _shown(answer: Json) -> str:
    shown = repr(answer) if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return shown if len(shown) <= 64 else shown[:64] + "…"
