"""Questions to a person: what is asked, what is taken, and what happens where nobody is there."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest

from sidecar.config import Settings
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps import user_input
from sidecar.engine.steps.context import AnswerNeeded, AskablePerson, Context, RunServices
from sidecar.errors import StepFailed
from sidecar.model.steps import UserInput
from sidecar.state.script import Script
from sidecar.state.world import World

pytestmark = pytest.mark.anyio


class Typist:
    """A person who types what was agreed upon, one after the other, and then is gone (None) or silent."""

    def __init__(self, *answers: str, then_silent: bool = False) -> None:
        self.answers = list(answers)
        self.then_silent = then_silent
        self.problems: list[str | None] = []
        self.asked: list[dict[str, Any]] = []
        self.deadlines: list[float] = []

    async def ask(self, question: dict[str, Any], problem: str | None) -> str | None:
        self.asked.append(question)
        self.problems.append(problem)
        self.deadlines.append(anyio.current_effective_deadline())
        if self.answers:
            return self.answers.pop(0)
        if self.then_silent:
            await anyio.sleep_forever()
        return None

    async def lend_terminal(self, run: Callable[[int], Awaitable[int]]) -> int | None:
        raise AssertionError("a question needs no terminal of its own")


@pytest.fixture
def view() -> Iterator[View]:
    with Script(worker=False) as script:
        yield View(Texts(script), World(script), {"item": "main", "count": 3, "nobody_sets": None})


def with_person(view: View, person: AskablePerson | None) -> Context:
    services = RunServices(
        root="/", run_id="RUN", workspace=None, environment={}, settings=Settings.model_validate({}), person=person
    )
    return Context(
        services=services,
        view=view,
        key="ask[1]",
        attempt=1,
        task_id=None,
        additions=(),
        cost_remaining_usd=None,
        start=_nothing_is_started,
        log_path=lambda: "",
        emit=lambda kind, data: None,
        spend=lambda cost, tokens: None,
    )


async def _nothing_is_started(*_: object) -> Any:
    raise AssertionError("a question starts no process")


def step(**keys: Any) -> UserInput:
    return UserInput(type="user_input", **{"prompt": "What?", **keys})


async def answered(view: View, person: Typist, **keys: Any) -> Any:
    with anyio.fail_after(20):
        return await user_input.run(step(**keys), with_person(view, person))


async def test_the_question_is_plain_json_with_every_template_filled_in(view: View) -> None:
    person = Typist("main")
    keys = {
        "prompt": "Which of {{ count }}?",
        "choices": ["{{ item }}", "other"],
        "default": "{{ item }}",
        "validation": {"pattern": "^[a-z]{3,}$", "error_message": "not {{ count }}"},
    }
    assert await answered(view, person, **keys) == "main"
    assert json.loads(json.dumps(person.asked)) == [
        {
            "step": "ask[1]",
            "prompt": "Which of 3?",
            "type": "string",
            "choices": ["main", "other"],
            "default": "main",
            "pattern": "^[a-z]{3,}$",
            "error_message": "not 3",
        }
    ]


@pytest.mark.parametrize("person", [None, Typist(), Typist("wrong")])
async def test_where_nobody_can_be_asked_the_run_waits_and_the_default_is_not_taken(
    view: View, person: Typist | None
) -> None:
    asking = step(prompt="How many, {{ item }}?", answer_type="integer", default=7)
    with anyio.fail_after(20), pytest.raises(AnswerNeeded) as needed:
        await user_input.run(asking, with_person(view, person))
    assert needed.value.question == {
        "step": "ask[1]",
        "prompt": "How many, main?",
        "type": "integer",
        "choices": None,
        "default": 7,
        "pattern": None,
        "error_message": "",
    }


async def test_a_person_who_does_not_answer_in_time_fails_the_step(view: View) -> None:
    with pytest.raises(StepFailed, match=r"no answer within 0.02 s: What\?") as caught:
        await answered(view, Typist("wrong", then_silent=True), answer_type="integer", timeout=20)
    assert caught.value.error["kind"] == "timeout"
