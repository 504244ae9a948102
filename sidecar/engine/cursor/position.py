"""Lists of steps that a cursor can walk, and the way to a step in them by its id."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.errors import DefinitionChanged, SidecarError
from sidecar.model.steps_control import Conditional, ForEach, Loop, ParallelForEach, branches

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.model.steps_control import ParallelForEach, Step, Steps
    from sidecar.model.workflow import Workflow

    PartAt = Callable[[tuple[str, ...]], "StepList"]


Json = Any  # plain JSON: what json.loads gives
Error = dict[str, Json]


class Scope(NamedTuple):
    """Where an expression stands: which workflow's state it sees, and the names that loops add.

    `path` has the ids of the `include_workflow` steps that lead there, the outermost first; () is the run's own state.
    """

    path: tuple[str, ...] = ()
    names: dict[str, Json] = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True, slots=True)
class StepList:
    """Steps with what holds for all of them.

    `stoppable`: a stop is taken between them; not so in the tasks of `parallel_foreach`, which finish.
    `continue_on_error`: an error that no step handles skips that step only (`error_handling: {on_error: continue}`).
    """

    steps: Steps
    stoppable: bool = False
    continue_on_error: bool = False

    @classmethod
    def of_workflow(cls, workflow: Workflow) -> StepList:
        """The steps of a workflow, as a run or an `include_workflow` walks them."""
        handling = workflow.error_handling
        return cls(workflow.steps or (), stoppable=True, continue_on_error=handling.on_error == "continue")


def inner(step: Step, branch: str) -> Steps | None:
    """The steps of a branch (`then`, `else`, `body`), None where the step has no such branch."""
    if isinstance(step, Loop):
        return step.inner if branch == "body" else None
    if isinstance(step, Conditional):
        return {"then": step.then, "else": step.else_ or ()}.get(branch)
    return None


def find(steps: Steps, step_id: str) -> int:
    """Where a step stands in a list."""
    for place, step in enumerate(steps):
        if step.id == step_id:
            return place
    raise gone(step_id)


def gone(step_id: str) -> DefinitionChanged:
    """The error for a step that is not where the run left it."""
    return DefinitionChanged(
        f"step {step_id!r}, where the run stands, is not in the same place of the definition any more: "
        "resume with the definition that the run was started with, or start a new run"
    )


# Where a run stands, as plain values: a frame for each list of steps that is entered, the tasks, the failure.


Branch = Literal["steps", "then", "else", "body"]
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
    part: StepList | None = None  # of a frame that begins a part
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
class PlannedEnd:
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
    ending: PlannedEnd | None = None
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
        return tuple(self.frames[at - 1].step.id for at in range(1, level + 1) if self.frames[at].branch == "steps")

    def scope(self, level: int) -> Scope:
        """What the current step of a frame sees. A part sees nothing of the loops around its `include_workflow`."""
        frames = self.frames
        first = level
        while frames[first].branch != "steps":
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


# A state as plain JSON and back; the ids of steps are the anchors by which it finds its place in the definition.


VERSION = 1
_FRAME_VALUES = ("phase", "answers", "failures", "index", "batch", "delay_s")
_COUNTERS = ("iterations", "transitions", "batches_begun")


def dump(state: State) -> dict[str, Json]:
    """Plain JSON. It shares its values with the state: write it out, do not change it."""
    return {
        "version": VERSION,
        "frames": [_dump_frame(frame) for frame in state.frames],
        "batches": [_dump_batch(batch) for batch in state.batches.values()],
        "failure": None if state.failure is None else asdict(state.failure),
        "ending": None if state.ending is None else asdict(state.ending),
        **{name: getattr(state, name) for name in _COUNTERS},
    }


def load(data: dict[str, Json], part_at: PartAt) -> State:
    """The state again. DefinitionChanged where a step that it stands on is gone."""
    if data.get("version") != VERSION:
        raise SidecarError(
            f"this run was written down by another version of sidecar (format {data.get('version')!r}, "
            f"this one reads {VERSION}): resume it with that one"
        )
    failure, ending = data["failure"], data["ending"]
    return State(
        _load_frames(data["frames"], part_at),
        {each["number"]: _load_batch(each, part_at) for each in data["batches"]},
        None if failure is None else Failure(**failure),
        None if ending is None else PlannedEnd(**ending),
        **{name: data[name] for name in _COUNTERS},
    )


def _dump_frame(frame: Frame) -> dict[str, Json]:
    values = {name: getattr(frame, name) for name in _FRAME_VALUES}
    return {"branch": frame.branch, "step": frame.step.id, "type": frame.step.type, **values}


def _load_frames(data: list[dict[str, Json]], part_at: PartAt) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    path: tuple[str, ...] = ()
    for each in data:
        below = frames[-1].step if frames else None
        part = None
        if each["branch"] == "steps":
            if below is not None:
                path = (*path, below.id)
            part = part_at(path)
        steps = part.steps if part is not None else _branch(below, each)
        place = find(steps, each["step"])
        _same_type(steps[place], each["type"])
        values: dict[str, Any] = {name: each[name] for name in _FRAME_VALUES}
        frames.append(Frame(steps, place, each["branch"], part, **values))
    return tuple(frames)


def _branch(step: Step | None, data: dict[str, Json]) -> Steps:
    steps = None if step is None else inner(step, data["branch"])
    if steps is None:
        raise gone(data["step"])
    return steps


def _same_type(step: Step, type_: str) -> None:
    if step.type != type_:
        raise DefinitionChanged(
            f"step {step.id!r}, where the run stands, is `{step.type}` now and was `{type_}`: "
            "resume with the definition that the run was started with, or start a new run"
        )


def _dump_batch(batch: Batch) -> dict[str, Json]:
    return {
        "number": batch.number,
        "step": batch.step.id,
        "items": list(batch.items),
        "max_parallel": batch.max_parallel,
        "max_retries": batch.max_retries,
        "stoppable": batch.stoppable,
        "path": list(batch.scope.path),
        "names": batch.scope.names,
        "done": sorted(batch.done),
        "failures": [[index, count] for index, count in sorted(batch.failures.items())],
        "error": batch.error,
        "background": batch.background,
    }


def _load_batch(data: dict[str, Json], part_at: PartAt) -> Batch:
    path = tuple(data["path"])
    step = _anywhere(part_at(path).steps, data["step"])
    if not isinstance(step, ParallelForEach):
        raise gone(data["step"])
    return Batch(
        data["number"],
        step,
        tuple(data["items"]),
        data["max_parallel"],
        data["max_retries"],
        data["stoppable"],
        Scope(path, data["names"]),
        frozenset(data["done"]),
        dict(data["failures"]),
        data["error"],
        data["background"],
    )


def _anywhere(steps: Steps, step_id: str) -> Step | None:
    """A step of that id in a list or inside its steps: tasks in the background outlive the frame that began them."""
    for step in steps:
        if step.id == step_id:
            return step
        for children in branches(step).values():
            if (found := _anywhere(children, step_id)) is not None:
                return found
    return None
