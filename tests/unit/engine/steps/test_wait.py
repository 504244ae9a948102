"""Pauses: for a time, and until something holds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import anyio
import pytest

from sidecar.config import Settings
from sidecar.engine.evaluation import Texts, View
from sidecar.engine.steps import wait
from sidecar.engine.steps.context import Context, RunServices
from sidecar.errors import ExpressionError, StepFailed
from sidecar.model.steps import Wait
from sidecar.state.reactive import Reactive, Write
from sidecar.state.script import Script

pytestmark = pytest.mark.anyio


@pytest.fixture
def state(script: Script) -> Reactive:
    return Reactive(script, {}, raw={"done": 0}, declared=["nobody_sets"])


@pytest.fixture
def context(script: Script, state: Reactive) -> Context:
    services = RunServices(root="/", run_id="RUN", workspace=None, environment={}, settings=Settings.model_validate({}))
    return Context(
        services=services,
        view=View(Texts(script), state.world, {"item": 2}),
        key="pause",
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
    raise AssertionError("a pause starts no process")


def step(**keys: Any) -> Wait:
    return Wait(type="wait", **keys)


async def failure(pause: Wait, context: Context) -> StepFailed:
    with anyio.fail_after(20), pytest.raises(StepFailed) as caught:
        await wait.run(pause, context)
    return caught.value


async def test_a_duration_passes_before_the_next_step(context: Context) -> None:
    begun = time.monotonic()
    with anyio.fail_after(20):
        await wait.run(step(duration=80), context)
    assert time.monotonic() - begun >= 0.079  # less would be a broken promise on any machine


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"duration": "{{ nobody_sets }}"}, "duration has no value"),
        ({"duration": "{{ 'soon' }}"}, "duration: 'soon' is not a duration"),
        ({"until": False, "interval": "{{ 0 }}"}, "interval has to be longer than nothing"),
        ({"until": False, "interval": "{{ nobody_sets }}"}, "interval has no value"),
        ({"until": False, "timeout": "{{ -1 }}"}, "timeout: -1 is not a duration"),
    ],
)
async def test_what_is_no_duration_fails_the_step_and_says_which_key_is_wrong(
    context: Context, keys: dict[str, Any], told: str
) -> None:
    assert told in str(await failure(step(**keys), context))


async def test_a_condition_sees_what_others_write_meanwhile(context: Context, state: Reactive) -> None:
    over = anyio.Event()

    async def wait_for_it() -> None:
        await wait.run(step(until="{{ done >= 3 }}", interval=1), context)
        over.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_it)
            for count in (1, 2):
                state.update([Write("raw.done", count)])
                await anyio.wait_all_tasks_blocked()
                assert not over.is_set()
            state.update([Write("raw.done", 3)])
            await over.wait()


async def test_a_condition_that_never_holds_fails_the_step_at_the_timeout(context: Context) -> None:
    error = await failure(step(until="{{ done > 0 }}", interval=1, timeout=20), context)
    assert error.error == {"message": "`until` was not true within 0.02 s: {{ done > 0 }}", "kind": "timeout"}


class TrueAtTheSecondLook(View):
    """A place where something comes to hold right after the first look: no clock decides whether it was in time."""

    looks: int

    def truth(self, condition: str | bool) -> bool:
        looks = getattr(self, "looks", 0) + 1
        object.__setattr__(self, "looks", looks)
        return looks == 2


async def test_the_last_look_is_at_the_timeout_however_long_the_interval(context: Context) -> None:
    view = TrueAtTheSecondLook(context.view.texts, context.view.world, {})
    with anyio.fail_after(20):
        await wait.run(step(until="{{ done > 0 }}", interval="1h", timeout=20), replace(context, view=view))
    assert view.looks == 2


async def test_a_condition_that_cannot_be_evaluated_fails_at_once(context: Context) -> None:
    with anyio.fail_after(20), pytest.raises(ExpressionError, match="nobody_knows"):
        await wait.run(step(until="{{ nobody_knows.field }}", interval="1h"), context)
