"""`--interactive`: what a workflow asks for and nobody gave is asked for at the terminal, until it is right."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.display.person import TerminalSession
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps.user_input import accepted, matching
from sidecar.errors import InputError
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.model.parameters import Parameter
    from sidecar.state.script import Script

_TERMINAL = 0


def answers(parameters: Sequence[Parameter], script: Script) -> dict[str, Any]:
    """A value for each. InputError where nobody is there to be asked."""
    if not parameters:
        return {}
    if not os.isatty(_TERMINAL):
        raise InputError(f"{', '.join(one.name for one in parameters)} missing, and no terminal to ask at")
    questions = [_question(parameter) for parameter in parameters]
    values = anyio.run(_asked, questions, script)
    return {parameter.name: value for parameter, value in zip(parameters, values, strict=True)}


def checked(question: dict[str, Any], answer: object, script: Script) -> Any:
    """The value of an answer to a question of a run, or one of ours; ValueError says what would be right."""
    return _with_patterns(script, lambda matches: accepted(question, answer, matches))


async def _asked(questions: list[dict[str, Any]], script: Script) -> list[Any]:
    person = TerminalSession(fd=_TERMINAL)
    return [await _answer(person, question, script) for question in questions]


async def _answer(person: TerminalSession, question: dict[str, Any], script: Script) -> Any:
    problem: str | None = None
    while True:
        said = await person.ask(question, problem)
        if said is None:
            raise InputError(f"{question['prompt']}: no answer")
        try:
            return checked(question, said, script)
        except ValueError as error:
            problem = str(error)


def _question(parameter: Parameter) -> dict[str, Any]:
    about = f" ({parameter.description})" if parameter.description else ""
    choices = None if parameter.choices is None else list(parameter.choices)
    return {"prompt": f"{parameter.name}{about}", "type": parameter.type, "choices": choices, "default": None}


def _with_patterns(script: Script, do: Callable[[Callable[[str, str], bool]], Any]) -> Any:
    world = World(script)
    try:
        return do(matching(View(Texts(script), world, {})))
    finally:
        world.close()
