"""`user_input`: a question to the person, asked again until the answer is one that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine.context import AnswerNeeded
from sidecar.engine.work.answers import accepted, matching
from sidecar.engine.work.durations import positive_s
from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from sidecar.engine.context import Context
    from sidecar.model.steps import UserInput


async def run(step: UserInput, context: Context) -> Any:
    """The answer. AnswerNeeded where nobody can be asked: a default is for who agrees, not for who is not there."""
    asked = question(step, context)
    timeout_s = positive_s(context.view, step.timeout_s, "timeout")
    matches = matching(context.view)
    person = context.around.person
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
    raise StepFailed(f"nobody answered within {timeout_s:g} s: {asked['prompt']}", kind="timeout")


def question(step: UserInput, context: Context) -> dict[str, Any]:
    """What is asked, with every template filled in: plain JSON, for whoever has to ask it."""
    view = context.view
    validation = step.validation
    return {
        "step": context.key,
        "prompt": view.text(step.prompt),
        "type": step.answer_type,
        "choices": None if step.choices is None else view.value(step.choices),
        "default": view.value(step.default),
        "pattern": None if validation is None else validation.pattern,
        "error_message": view.text(validation.error_message) if validation is not None else "",
    }
