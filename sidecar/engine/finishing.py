"""The end of a run's own thread: what it comes to, another round where that is wanted, and the steps for a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from sidecar.engine import aftermath
from sidecar.engine.ending import Ending
from sidecar.engine.opened import end_reason
from sidecar.engine.program.actions import Finished, LimitReached
from sidecar.errors import SidecarError
from sidecar.model import run as kinds

if TYPE_CHECKING:
    from sidecar.engine.opened import OpenRun
    from sidecar.engine.program.actions import Action, Error


async def finish(opened: OpenRun, action: Action) -> Ending | None:
    """How the run ends; None: the workflow is done from the start again."""
    if isinstance(action, LimitReached):
        return limit_reached(action)
    assert isinstance(action, Finished)
    if action.status == "completed":
        return Ending("completed", action.message)
    if await _again(opened):
        return None
    return await failed(opened, action.error or {"message": action.message})


async def failed(opened: OpenRun, error: Error) -> Ending:
    """The steps for a failure are done: those of the workflows that the run is in, the innermost first."""
    main, interpreter = opened.image.main, opened.interpreter
    main.error = error
    await interpreter.failed_parts(main)
    await interpreter.see_to(main, aftermath.ON_FAILURE, (), {"error": error})
    limit = error.get("limit")  # of an agent: whoever reads the exit code wants to tell that from a failure
    return Ending("failed", str(error.get("message", "")), limit=str(limit) if limit else None)


async def end_between(opened: OpenRun, ending: Ending) -> Ending | None:
    """The run ends between two steps. None: not after all, the stop was taken back while what ran was waited for."""
    if ending.status in ("stopped", "paused"):
        await opened.batches.drained()
        opened.board.look()
        if opened.board.abort is not None:
            return opened.gate.aborted()
        if ending.status == "stopped" and opened.board.stop is None:
            opened.batches.go_on()
            return None
        return ending
    opened.processes.request_end(end_reason(ending))
    if ending.limit or ending.request is not None:
        return ending
    await opened.batches.cancel("shutdown")  # `exit` in a task ends the others
    return ending if ending.error is None else await failed(opened, ending.error)


def limit_reached(action: LimitReached) -> Ending:
    """A loop has had all its iterations."""
    reason = f"step {action.step.id!r} still wants to go on after {action.limit} iterations"
    return Ending("failed", reason, limit="max_iterations")


async def _again(opened: OpenRun) -> bool:
    """Whether the workflow is done from the start again."""
    image = opened.image
    handling = image.definition.workflow.error_handling
    if handling.on_error != "retry_workflow" or image.main.exited:
        return False
    view = image.spaces[()].view({})
    try:
        rounds, delay_s = int(view.value(handling.retry_count)), view.seconds(handling.retry_delay_s) or 0.0
    except (SidecarError, ValueError, TypeError, OverflowError) as error:  # the last: Infinity is no number of times
        opened.warn(f"it is not known how often the workflow is to be retried: {error}")
        return False
    if image.counters.round > rounds:
        return False
    opened.ledger.commit(durable=True)
    await anyio.sleep(delay_s)
    opened.ledger.note(kinds.WORKFLOW_RETRIED, round=image.counters.round + 1)
    image.restart(opened.run.inputs)
    await opened.ledger.checkpoint(image.to_json)
    return True
