"""`user_input`: asks the person a question, again until the answer is valid."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import anyio

from sidecar.engine.evaluation import View, positive_s
from sidecar.engine.steps.context import AnswerNeeded, Context
from sidecar.errors import ExpressionError, StepFailed
from sidecar.model.parameters import is_of_type
from sidecar.model.steps import UserInput
from sidecar.state.template import as_text
from sidecar.state.values import same


async def run(step: UserInput, context: Context) -> Any:
    """The answer. AnswerNeeded where no person can be asked, also with a default: a person has to agree to it."""
    asked = {"step": context.key, **question(step, context.view)}
    timeout_s = positive_s(context.view, step.timeout_s, "timeout")
    matches = matching(context.view)
    person = context.services.person
    if person is None:
        raise AnswerNeeded(asked)
    problem: str | None = None
    with anyio.move_on_after(timeout_s):
        while True:
            answer = await person.ask(asked, problem)
            if answer is None:
                raise AnswerNeeded(asked)
            try:
                return accepted(asked, answer, matches)
            except ValueError as error:
                problem = str(error)
    raise StepFailed(f"no answer within {timeout_s:g} s: {asked['prompt']}", kind="timeout")


def question(step: UserInput, view: View) -> dict[str, Any]:
    """The question with every template rendered, as plain JSON."""
    validation = step.validation
    return {
        "prompt": view.text(step.prompt),
        "type": step.answer_type,
        "choices": None if step.choices is None else view.value(step.choices),
        "default": view.value(step.default),
        "pattern": None if validation is None else validation.pattern,
        "error_message": view.text(validation.error_message) if validation is not None else "",
    }


# --- whether an answer is valid, and its value


_TRUTHS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LARGEST_INTEGER = 2**53 - 1  # above, neighbouring integers are one number to expressions
_LONGEST_NUMBER_TEXT = 400
_EXPECTED = {
    "number": "the answer has to be a number, such as 3 or 2.5",
    "integer": "the answer has to be a whole number, such as 3",
    "boolean": "the answer has to be yes or no",
    "array": "the answer has to be a list in JSON, such as [1, 2]",
    "object": 'the answer has to be an object in JSON, such as {"a": 1}',
    "string": "the answer has to be a text",
}


def accepted(question: dict[str, Any], answer: object, matches: Callable[[str, str], bool]) -> Any:
    """The value of an answer; ValueError, with a message for the person, where it is not valid.

    A text is parsed as the question's type; any other value has to be of that type already. None or an empty text means
    the default where there is one. `matches(pattern, text)`: whether a JavaScript pattern is found in a text; for a
    value that is no text, in its JSON.
    """
    if question.get("default") is not None and (answer is None or (isinstance(answer, str) and not answer.strip())):
        answer = question["default"]
    choices = question.get("choices")
    value = _typed(answer, question["type"]) if choices is None else _chosen(answer, question["type"], choices)
    pattern = question.get("pattern")
    if pattern is not None and not matches(pattern, as_text(value)):
        raise ValueError(question.get("error_message") or f"the answer has to match {pattern}")
    return value


def matching(view: View) -> Callable[[str, str], bool]:
    """Matches patterns by the run's evaluator, and so under its time limit."""
    program = view.texts.program("new RegExp(pattern).test(text)")

    def matches(pattern: str, text: str) -> bool:
        try:
            return bool(view.with_names(pattern=pattern, text=text).run(program))
        except ExpressionError as error:
            if error.kind != "time":
                raise
            # The pattern backtracks over this answer. Another one may be quick: no reason to fail the step.
            raise ValueError("the answer cannot be compared with the pattern in time: give a shorter one") from None

    return matches


def _chosen(answer: object, kind: str, choices: list[Any]) -> Any:
    for choice in choices:
        if same(choice, answer):
            return choice
    if isinstance(answer, str):
        for choice in choices:
            if as_text(choice) == answer.strip():
                return choice
        try:
            value = _typed(answer, kind)
        except ValueError:
            value = answer
        for choice in choices:  # `yes` for true, `2.0` for 2
            if same(choice, value):
                return choice
    raise ValueError(f"the answer has to be one of {', '.join(map(as_text, choices))}")


def _typed(answer: object, kind: str) -> Any:
    if isinstance(answer, str) and kind != "string":
        answer = _parsed(answer.strip(), kind)
    if isinstance(answer, float) and kind == "integer" and answer.is_integer():
        answer = int(answer)  # to JavaScript, and so to many a client, 3.0 and 3 are the same
    if not is_of_type(answer, kind) or (isinstance(answer, float) and not math.isfinite(answer)):
        raise ValueError(_EXPECTED[kind])
    if isinstance(answer, int) and abs(answer) > _LARGEST_INTEGER:
        raise ValueError(
            f"the answer has to be {_LARGEST_INTEGER} at most: expressions cannot represent larger numbers exactly"
        )
    return answer


def _parsed(text: str, kind: str) -> Any:
    """The value of a text; a value of another type where the text has none of this type."""
    if kind == "boolean":
        return _TRUTHS.get(text.lower())
    if kind in ("number", "integer"):
        if len(text) > _LONGEST_NUMBER_TEXT or not _NUMBER.fullmatch(text):
            return None
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
