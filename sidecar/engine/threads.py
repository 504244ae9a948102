"""Lines of execution: the run's own, and one for each task of `parallel_foreach`, each with a cursor of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.engine.program.actions import Scope
from sidecar.model.steps_control import IncludeWorkflow, Loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.engine.cursor import Cursor
    from sidecar.engine.program.actions import Error, Parallel
    from sidecar.engine.program.frames import State
    from sidecar.engine.spaces import Path


_OF_THREAD = ">"  # in no id of a step, and in no key


@dataclass(eq=False)
class Thread:
    """One line: where it stands, in whose state, with which names of its own."""

    key: str  # "" for the run's own; else unique in the run
    task_id: str | None
    cursor: Cursor
    path: Path = ()  # the workflow that the task belongs to
    names: dict[str, Any] = field(default_factory=dict)
    parent: Thread | None = None
    place: tuple[int, int] | None = None  # batch and index in the parent
    handed: bool = False  # an agent outside does what needs one
    spare: bool = False  # steps for a failure: no limit of the run keeps them from being done
    error: Error | None = None  # the last that one of its steps failed with
    failures: int = 0  # that there were steps for
    spares: dict[str, Thread] = field(default_factory=dict)  # the steps for its end, where it failed
    left: list[Thread] = field(default_factory=list)  # those of included workflows that an error has left, not done yet
    told: bool = False  # of a task that is over: its batch knows
    children: dict[tuple[int, int], Thread] = field(default_factory=dict)
    tries: dict[tuple[int, int], int] = field(default_factory=dict)  # fresh starts of each task
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def scope(self, scope: Scope) -> Scope:
        """A scope of the cursor, seen from the run. What is included sees nothing of the task around it."""
        names = scope.names if scope.path else {**self.names, **scope.names}
        return Scope(self.space(scope.path), names)

    def space(self, inner: Path) -> Path:
        """Where the state is that a path of the cursor leads to."""
        return space_path(self.path, self.key, inner)

    @property
    def here(self) -> Path:
        """Where the state of the current step is."""
        frames = self.cursor.state
        return self.space(frames.path(len(frames.frames) - 1))

    @property
    def task(self) -> str | None:
        """The name of the task that it does, while its batch is there."""
        if self.parent is None or self.place is None:
            return None
        return self.parent.cursor.state.batches[self.place[0]].step.sub_agent_task

    @property
    def exited(self) -> bool:
        """By `exit`, which ends the whole run."""
        ending = self.cursor.state.ending
        return ending is not None and ending.exited

    def walk(self) -> Iterator[Thread]:
        """This thread and all below it."""
        yield self
        for child in list(self.children.values()):
            yield from child.walk()

    def walk_all(self) -> Iterator[Thread]:
        """The same, and what is done for their failures."""
        for thread in self.walk():
            yield thread
            for spare in [*thread.spares.values(), *thread.left]:
                yield from spare.walk_all()

    def step_key(self, state: State | None = None) -> str:
        """What tells this execution of the current step from every other of the run: ids, iterations, attempts.

        `state`: where the thread stood, in place of where it stands.
        """
        words = []
        frames = (state or self.cursor.state).frames
        for frame in frames:
            word = frame.step.id
            if frame is not frames[-1] and isinstance(frame.step, Loop):
                word += f"[{frame.index}]"
            elif frame is not frames[-1] and isinstance(frame.step, IncludeWorkflow) and frame.failures:
                word += f"~{frame.failures + 1}"
            words.append(word)
        return "/".join([self.key, *words] if self.key else words)


def space_path(path: Path, key: str, inner: Path) -> Path:
    """The path of a state that a thread entered: tasks beside each other may include the same workflow."""
    if not inner or not key:
        return (*path, *inner)
    return (*path, f"{key}{_OF_THREAD}{inner[0]}", *inner[1:])


def step_of(path: Path) -> str:
    """The step that included the workflow whose state is there."""
    return path[-1].rpartition(_OF_THREAD)[2]


def task_id(parent: Thread, action: Parallel, index: int) -> str:
    """The id by which a task's agent asks for its steps. A task inside another is told from its cousins by that."""
    word = f"{action.step.id}.{index}"
    if action.batch and "loop" in action.scope.names and not action.step.wait_for_all:
        word += f"#{action.batch}"  # the one of an earlier iteration may still be in an agent's hands
    return f"{parent.task_id}/{word}" if parent.task_id else word


def task_key(parent: Thread, step_id: str, place: tuple[int, int], tries: int) -> str:
    """The key of a task's thread: unique also where the same step stands in a loop, or the task is tried again."""
    batch, index = place
    word = f"{step_id}.{index}" + (f"#{batch}" if batch else "") + (f"~{tries}" if tries > 1 else "")
    return f"{parent.key}/{word}" if parent.key else word
