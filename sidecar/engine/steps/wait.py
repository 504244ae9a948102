"""`wait`: waits for a time or until a condition holds."""

from __future__ import annotations

import math

import anyio

from sidecar.engine.evaluation import duration_s, positive_s
from sidecar.engine.steps.context import Context
from sidecar.errors import StepFailed
from sidecar.model.steps import Wait


async def run(step: Wait, context: Context) -> None:
    """Wait. The condition sees the state as it is at each check, with what parallel tasks have written meanwhile."""
    if step.until is not None:
        await _until(step, step.until, context)
        return
    pause_s = duration_s(context.view, step.duration_s, "duration")
    if pause_s is None:
        raise StepFailed("duration has no value (null)")
    await anyio.sleep(pause_s)


async def _until(step: Wait, condition: str | bool, context: Context) -> None:
    view = context.view
    interval_s = positive_s(view, step.interval_s, "interval")
    if interval_s is None:
        raise StepFailed("interval has no value (null)")
    timeout_s = positive_s(view, step.timeout_s, "timeout")
    deadline = math.inf if timeout_s is None else anyio.current_time() + timeout_s
    while not view.truth(condition):
        left_s = deadline - anyio.current_time()
        if left_s <= 0:
            raise StepFailed(f"`until` was not true within {timeout_s:g} s: {condition}", kind="timeout")
        # The last check is at the deadline itself: a condition that holds since shortly before it still counts.
        await anyio.sleep(min(interval_s, left_s))
