"""The steps for a failure: lines of their own beside the thread that failed, kept with it until they are done.

Those of an included workflow that an error has left follow from where the thread stood and where it stands: the loop
and whoever tells a run again find them in the same way. Those at the end of a thread are begun by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.engine.cursor import Cursor
from sidecar.engine.program.parts import Part
from sidecar.engine.threads import Thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.engine.program.frames import State
    from sidecar.engine.spaces import Path, Spaces
    from sidecar.model.steps_control import Steps

CLEANUP = "cleanup"  # of a task
ON_FAILURE = "on_failure"  # of a workflow; with a level, of an included one


def begin(spaces: Spaces, thread: Thread, word: str, path: Path, names: Mapping[str, Any]) -> Thread | None:
    """The steps at the end of a thread that failed; None where there are none."""
    spare = _made(spaces, thread, word, path, names)
    if spare is not None:
        thread.spares[word] = spare
    return spare


def leave(spaces: Spaces, thread: Thread, before: State) -> None:
    """The thread has moved on from where it stood: the steps of the included workflows that an error has left."""
    after = thread.cursor.state
    if len(after.frames) >= len(before.frames) or (after.ending is not None and after.ending.exited):
        return
    # What is left by its last step is not left by an error: at the top the run, else what is now in the phase "leave".
    over = not after.frames or after.top.phase == "leave"
    for level in range(len(before.frames) - 1, len(after.frames) - 1 + over, -1):
        if before.frames[level].branch == "part":
            names = {"error": thread.error or {"message": ""}}
            spare = _made(spaces, thread, f"{ON_FAILURE}.{level}", thread.space(before.path(level)), names)
            thread.left += [spare] if spare is not None else []


def steps_of(spaces: Spaces, thread: Thread, word: str, path: Path) -> Steps:
    """What the definition has for such a failure of a thread."""
    definition = spaces[path].definition
    if word == CLEANUP:
        assert thread.task is not None
        return definition.tasks[thread.task].error_handling.cleanup_on_error or ()
    return definition.workflow.error_handling.on_failure or ()


def _made(spaces: Spaces, thread: Thread, word: str, path: Path, names: Mapping[str, Any]) -> Thread | None:
    steps = steps_of(spaces, thread, word, path)
    if not steps:
        return None
    thread.failures += 1  # however often it comes to fail, over all its starts, the keys are others
    key = f"{word}~{thread.failures}"
    key = f"{thread.key}/{key}" if thread.key else key
    return Thread(key, thread.task_id, Cursor.start(Part(steps)), path, dict(names), spare=True)
