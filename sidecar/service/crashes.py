"""Runs that bring their owner down: one at whose same place its owner died too often is left to a person.

Its step may be what kills the owner, by its memory for one: resumed for ever, it would take every other run along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.agents import lineage
from sidecar.model import events as kinds
from sidecar.signals.run_lock import RunLock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.engine.owner import Owner
    from sidecar.store.journal import Event, StoredRun

_MOST = 3
_STARTS = (kinds.RUN_STARTED, kinds.RUN_RESUMED)
_STEPS = (kinds.STEP_STARTED, kinds.STEP_COMPLETED, kinds.ITERATION)


def end_left(owner: Owner, run: StoredRun) -> Event | None:
    """The end of a run that nobody holds and that is left to a person, journalled here where it is not yet; None where
    it may be resumed."""
    events = owner.journal.events(run.run_id)
    if events and events[-1].kind == kinds.RUN_ENDED and events[-1].data.get("gave_up"):
        return events[-1]
    step, count = _deaths(events, lineage.boot_id())
    if run.status != "running" or count < _MOST:
        return None
    reason = (
        f"its owner died {count} times at step {step or '1'}, so it is left to you; when that is mended: "
        f"sidecar resume {run.run_id} --detach"
    )
    with RunLock(owner.root, run.run_id):
        return owner.journal.end(run.run_id, "interrupted", reason=reason, data={"owner_died": True, "gave_up": True})


def _deaths(events: Iterable[Event], boot_id: str) -> tuple[str | None, int]:
    """The step where the owner died last, and how often it did so there: in the same iteration, since the machine was
    started, and without a clean end in between.

    A start that did not come to any step counts for where the one before died: there it was about to go on.
    """
    place: dict[str, Any] = {}  # where the run is
    last: dict[str, Any] = {}  # where its owner died last
    count, boot, is_open = 0, None, False

    def died() -> None:
        nonlocal count, last
        known = boot == boot_id
        count = (count + 1 if place == last else 1) if known else 0
        last = dict(place)

    for event in events:
        if event.kind in _STARTS:
            boot, is_open = event.data.get("boot"), True
        elif event.kind in _STEPS and event.data.get("task") is None:
            if event.kind == kinds.ITERATION:
                place["iteration"] = (event.data["step"], event.data["iteration"])
            else:
                place["step"] = event.data["step"]  # its key, with the iterations around it
        elif event.kind == kinds.RUN_ENDED:
            is_open = False
            if event.data.get("owner_died") and not event.data.get("gave_up"):
                died()
            else:
                count = 0
    if is_open:
        died()
    return place.get("step"), count
