"""Whether a run would meet again what it has done, because a step was moved to behind the place where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.errors import DefinitionChanged

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from sidecar.engine.threads import Thread

_INSIDE = "[/~."  # what follows the key of a step in the keys of what is done inside it


def refuse(main: Thread, completed: Collection[str]) -> None:
    """DefinitionChanged where a step that is still to come, of any thread, is among those that were completed."""
    for thread in main.walk():
        for step_id, key in _ahead(thread):
            if any(one.startswith(key) and one[len(key) : len(key) + 1] in ("", *_INSIDE) for one in completed):
                raise DefinitionChanged(
                    f"step {step_id!r}, which the run has done, stands behind the step where the run is now, and would "
                    "be done again: resume with the definition that the run was started with, or start a new run"
                )


def _ahead(thread: Thread) -> Iterator[tuple[str, str]]:
    """The steps behind those that a thread stands in, with the keys that they will have."""
    state = thread.cursor.state
    for level, frame in enumerate(state.frames):
        for place in range(frame.place + 1, len(frame.steps)):
            moved = state.with_frames(*state.frames[:level], frame._replace(place=place))
            yield frame.steps[place].id, thread.step_key(moved)
