"""What an outside agent reported of a step, as the value that becomes the step's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.engine.work import answers, output
from sidecar.engine.work.json_in_text import fenced, last_count, last_object
from sidecar.errors import InputError, StepFailed
from sidecar.model.steps import ApplyHints, McpCall, RunsSomewhere, UserInput
from sidecar.state.template import as_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.engine.evaluation import View
    from sidecar.model.steps import OutputFormat, StepBase

_COUNT = "applied_count"


class Report(NamedTuple):
    """What an agent says of a step that it was handed."""

    step_id: str
    status: str = "success"
    result: Any = None
    error: str | None = None
    task_id: str | None = None
    attempt: int | None = None  # which one it was handed; None: it does not say


def read_result(step: StepBase, reported: object, *, definition: Mapping[str, Any], view: View) -> Any:
    """The result, the same that the step would have if sidecar itself had done it.

    `definition` is the one that was handed out: an answer belongs to the question that was asked. InputError says what
    would be right; the step is then still in the agent's hands, to be reported again. A step that has no result has
    none here either, whatever was reported.
    """
    if isinstance(step, RunsSomewhere):
        return _in_format(reported, step.output_format)
    if isinstance(step, ApplyHints):
        return _count(reported)
    if isinstance(step, UserInput):
        return _answer(reported, definition, view)
    if isinstance(step, McpCall):
        return _read_where_json(reported)
    return None


def _in_format(reported: object, wanted: OutputFormat) -> Any:
    """A text is read as an output would be; a value of the right kind is taken as it is, and so is nothing."""
    if reported is None:
        return output.nothing(wanted)
    if isinstance(reported, str):
        return _read(reported, wanted)
    if wanted == "text":
        return as_text(reported)
    if wanted == "lines":
        if not isinstance(reported, list):
            raise InputError("`result` has to be a list of lines, or a text")
        return [as_text(line) for line in reported]
    if wanted == "key_value":
        if not isinstance(reported, dict):
            raise InputError("`result` has to be an object, or a text with lines such as key=value")
        return {key: as_text(value) for key, value in reported.items()}
    return reported


def _read(text: str, wanted: OutputFormat) -> Any:
    # Models wrap JSON in a fence, however they are asked not to.
    readings = [text, *(fenced(text) if wanted == "json" else ())]
    problem = ""
    for reading in readings:
        try:
            return output.formatted(reading, wanted)
        except StepFailed as error:
            problem = problem or str(error)
    raise InputError(f"`result` does not fit the format {wanted}: {problem}")


def _count(reported: object) -> dict[str, Any]:
    found = last_object(reported, _COUNT) if isinstance(reported, str) else reported
    count = _whole(found[_COUNT] if isinstance(found, dict) and _COUNT in found else reported)
    if count is None:
        raise InputError(f'`result` has to say how many hints were applied, as in {{"{_COUNT}": 3}}')
    return {**(found if isinstance(found, dict) else {}), _COUNT: count}


def _whole(value: object) -> int | None:
    if isinstance(value, str):
        return last_count(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # many a client writes 3 as 3.0
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _answer(reported: object, definition: Mapping[str, Any], view: View) -> Any:
    question = {**definition, **definition.get("validation", {})}
    try:
        return answers.accepted(question, reported, answers.matching(view))
    except ValueError as error:
        raise InputError(str(error)) from None


def _read_where_json(reported: object) -> Any:
    if not isinstance(reported, str):
        return reported
    try:
        return output.formatted(reported, "json")
    except StepFailed:
        return reported
