"""Where a run stands, as plain values: a frame for each list of steps that is entered, the tasks, the failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.engine.program.actions import Scope
from sidecar.model.steps_control import ForEach, Loop

if TYPE_CHECKING:
    from sidecar.engine.program.actions import Error, Json
    from sidecar.engine.program.parts import Part
    from sidecar.model.steps_control import ParallelForEach, Step, Steps

Branch = Literal["part", "then", "else", "body"]
Phase = Literal[
    "boundary",  # before the step
    "ask",  # for a field that it needs to begin
    "check",  # the condition of a `while`
    "iteration",  # before an iteration
    "inside",  # there is a frame above
    "run",
    "parallel",
    "include",
    "leave",
    "delay",
]


_EMPTY: dict[Any, Any] = {}  # shared by all: nothing in a state is ever changed


# Frames and states are tuples: a cursor makes several of them for every step, and a frozen dataclass takes six times as
# long to make.
class Frame(NamedTuple):
    """A list of steps that is being walked, and how far its current step has come."""

    steps: Steps
    place: int
    branch: Branch
    part: Part | None = None  # of a frame that begins a part
    phase: Phase = "boundary"
    answers: dict[str, Json] = _EMPTY
    failures: int = 0  # of the current step, in a row
    index: int = 0  # type: ignore[assignment]  # of the current iteration; hides what tuples have by that name
    batch: int | None = None
    delay_s: float = 0.0

    @property
    def step(self) -> Step:
        """The current step."""
        return self.steps[self.place]


@dataclass(frozen=True, slots=True)
class Batch:
    """The tasks of one execution of a `parallel_foreach`."""

    number: int
    step: ParallelForEach
    items: tuple[Json, ...]
    max_parallel: int
    max_retries: int
    stoppable: bool
    scope: Scope
    done: frozenset[int] = frozenset()
    failures: dict[int, int] = field(default_factory=dict)
    error: Error | None = None
    background: bool = False  # the run went on without waiting for the rest

    @property
    def todo(self) -> tuple[int, ...]:
        """The items that are not done; none where the batch has failed."""
        if self.error is not None:
            return ()
        return tuple(index for index in range(len(self.items)) if index not in self.done)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way up: the step at `level` is being judged."""

    level: int
    error: Error
    answers: dict[str, Json] = field(default_factory=dict)
    settling: Literal["goes_on", "gives_up"] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ends. The frames of a run that did not complete stay, for a resume."""

    status: Literal["completed", "failed", "limit"]
    message: str = ""
    error: Error | None = None
    exited: bool = False  # by `exit`


class State(NamedTuple):
    """Everything that a cursor knows."""

    frames: tuple[Frame, ...] = ()
    batches: dict[int, Batch] = _EMPTY
    failure: Failure | None = None
    ending: Ending | None = None
    iterations: int = 0
    transitions: int = 0
    batches_begun: int = 0

    @property
    def top(self) -> Frame:
        """The frame of the step that is next."""
        return self.frames[-1]

    def with_top(self, **changes: Any) -> State:
        """The same with changes in the top frame."""
        return self.with_frames(*self.frames[:-1], self.frames[-1]._replace(**changes))

    def with_frames(self, *frames: Frame) -> State:
        """The same with these frames."""
        return State(
            frames, self.batches, self.failure, self.ending, self.iterations, self.transitions, self.batches_begun
        )

    def trimmed(self, depth: int) -> State:
        """Only the lowest frames, and only the batches that they, or the background, still need."""
        frames = self.frames[:depth]
        kept = {frame.batch for frame in frames}
        batches = {number: batch for number, batch in self.batches.items() if batch.background or number in kept}
        return self._replace(frames=frames, batches=batches)

    def path(self, level: int) -> tuple[str, ...]:
        """The `include_workflow` steps that lead to a frame."""
        return tuple(self.frames[at - 1].step.id for at in range(1, level + 1) if self.frames[at].branch == "part")

    def scope(self, level: int) -> Scope:
        """What the current step of a frame sees. A part sees nothing of the loops around its `include_workflow`."""
        frames = self.frames
        first = level
        while frames[first].branch != "part":
            first -= 1
        names: dict[str, Json] = {}
        for at in range(first, level + 1):
            frame = frames[at]
            if isinstance(frame.step, Loop) and (
                frame.phase == "inside" or (at == level and frame.phase in ("check", "iteration"))
            ):
                names.update(_names(frame))
        return Scope(self.path(first) if first else (), names)


def _names(frame: Frame) -> dict[str, Json]:
    if isinstance(frame.step, ForEach):
        items = frame.answers["items"]
        loop = {"index": frame.index, "length": len(items)}
        return {"item": items[frame.index], "index": frame.index, "loop": loop}
    return {"loop": {"index": frame.index}}
