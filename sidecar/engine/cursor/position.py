"""Where a run stands, as plain values: a frame for each list of steps that it has entered, its tasks and its failure.

`dump` and `load` turn them into JSON and back; the ids of steps are the anchors in the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from sidecar.errors import DefinitionChanged
from sidecar.model.steps import Loop, ParallelForEach, Step, Steps, branches
from sidecar.model.workflow import Workflow

Json = Any  # plain JSON: what json.loads gives
Error = dict[str, Json]
EMPTY: dict[Any, Any] = {}  # shared by all states: nothing in a state is ever changed


class Scope(NamedTuple):
    """What an expression sees: the state of which workflow, and the names that loops add.

    `path` has the ids of the `include_workflow` steps that lead there, the outermost first; () is the run's own state.
    """

    path: tuple[str, ...] = ()
    names: dict[str, Json] = EMPTY


@dataclass(frozen=True, slots=True)
class StepList:
    """The steps of a workflow or of a task, with what holds for all of them.

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


StepListAt = Callable[[tuple[str, ...]], StepList]  # by the path of a `Scope`
Branch = Literal["steps", "then", "else", "body"]  # "steps": of a `StepList`
Phase = Literal[
    "boundary",  # before the step
    "ask",  # a field that it needs to begin is evaluated
    "check",  # the condition of a `while` is evaluated
    "iteration",  # before an iteration
    "inside",  # in the steps that it contains: there is a frame above
    "run",
    "parallel",
    "include",
    "leave",
    "delay",
]


# Frames and states are tuples: a cursor makes several of them for every step, and a frozen dataclass takes six times as
# long to make.
class Frame(NamedTuple):
    """A list of steps that the run has entered, and the progress of its current step."""

    steps: Steps
    place: int
    step: Step  # the current one: `steps[place]`
    branch: Branch
    step_list: StepList | None = None  # of the branch "steps"
    phase: Phase = "boundary"
    answers: dict[str, Json] = EMPTY  # fields of the step that are evaluated
    failures: int = 0  # of the current step, in a row
    index: int = 0  # type: ignore[assignment]  # of the current iteration; hides what tuples have by that name
    batch: int | None = None
    delay_s: float = 0.0


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
    background: bool = False  # the run went on without waiting for all of them

    @property
    def todo(self) -> tuple[int, ...]:
        """The items that are not done; none where the batch has failed."""
        if self.error is not None:
            return ()
        return tuple(index for index in range(len(self.items)) if index not in self.done)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that the step at `level` has to handle. `after_update`: what follows its `ApplyErrorUpdate`."""

    level: int
    error: Error
    answers: dict[str, Json] = field(default_factory=dict)
    after_update: Literal["continue", "fail"] | None = None


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
    batches: dict[int, Batch] = EMPTY
    failure: Failure | None = None
    ending: PlannedEnd | None = None
    iterations: int = 0
    transitions: int = 0
    batches_begun: int = 0

    def trimmed(self, depth: int) -> State:
        """Only the lowest frames, and only the batches of these and of the background."""
        frames = self.frames[:depth]
        used = {frame.batch for frame in frames}
        batches = {number: batch for number, batch in self.batches.items() if batch.background or number in used}
        return self._replace(frames=frames, batches=batches)

    def failed_includes(self, before: State) -> list[int]:
        """The levels of the `include_workflow` steps, the innermost first, that fail because the current step of the
        state `before` failed: those whose workflow this state is neither in nor at the regular end of."""
        found = [at - 1 for at in range(len(before.frames) - 1, 0, -1) if before.frames[at].branch == "steps"]
        if self.failure is not None:
            return [at for at in found if at >= self.failure.level]
        if self.ending is not None and self.ending.status == "failed":
            return found
        depth = len(self.frames)
        ends = [depth - 1] if self.frames and self.frames[-1].phase == "leave" else []
        return [at for at in found if at + 1 >= depth and at not in ends]

    def path(self, level: int) -> tuple[str, ...]:
        """The `include_workflow` steps that lead to a frame."""
        return tuple(self.frames[at - 1].step.id for at in range(1, level + 1) if self.frames[at].branch == "steps")


# --- JSON


_FRAME_VALUES = ("phase", "answers", "failures", "index", "batch", "delay_s")
_BATCH_VALUES = ("number", "max_parallel", "max_retries", "stoppable", "error", "background")
_COUNTERS = ("iterations", "transitions", "batches_begun")


def dump(state: State) -> dict[str, Json]:
    """Plain JSON. It shares its values with the state: write it out, do not change it."""
    return {
        "frames": [_dump_frame(frame) for frame in state.frames],
        "batches": [_dump_batch(batch) for batch in state.batches.values()],
        "failure": None if state.failure is None else asdict(state.failure),
        "ending": None if state.ending is None else asdict(state.ending),
        **{name: getattr(state, name) for name in _COUNTERS},
    }


def load(data: dict[str, Json], step_list_at: StepListAt) -> State:
    """The state of such JSON. DefinitionChanged where a step that the run stands at is gone."""
    failure, ending = data["failure"], data["ending"]
    return State(
        _load_frames(data["frames"], step_list_at),
        {each["number"]: _load_batch(each, step_list_at) for each in data["batches"]},
        None if failure is None else Failure(**failure),
        None if ending is None else PlannedEnd(**ending),
        **{name: data[name] for name in _COUNTERS},
    )


def _dump_frame(frame: Frame) -> dict[str, Json]:
    values = {name: getattr(frame, name) for name in _FRAME_VALUES}
    return {"branch": frame.branch, "step": frame.step.id, "type": frame.step.type, **values}


def _load_frames(data: list[dict[str, Json]], step_list_at: StepListAt) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    path: tuple[str, ...] = ()
    for each in data:
        outer = frames[-1].step if frames else None
        step_list = None
        if each["branch"] == "steps":
            path = path if outer is None else (*path, outer.id)
            step_list = step_list_at(path)
            steps: Steps = step_list.steps
        else:
            inside = {"body": outer.inner} if isinstance(outer, Loop) else branches(outer) if outer else {}
            steps = inside.get(each["branch"], ())
        place = _place(steps, each["step"], each["type"])
        values: dict[str, Any] = {name: each[name] for name in _FRAME_VALUES}
        frames.append(Frame(steps, place, steps[place], each["branch"], step_list, **values))
    return tuple(frames)


def _place(steps: Steps, step_id: str, type_: str) -> int:
    place = next((place for place, step in enumerate(steps) if step.id == step_id), None)
    if place is None:
        raise _moved(step_id)
    if steps[place].type != type_:
        now = f"is `{steps[place].type}` now and was `{type_}`"
        raise definition_changed(f"step {step_id!r}, where the run stands, {now}")
    return place


def _moved(step_id: str) -> DefinitionChanged:
    where = "is not in the same place of the definition any more"
    return definition_changed(f"step {step_id!r}, where the run stands, {where}")


def definition_changed(what: str) -> DefinitionChanged:
    """The error of a run that does not fit into its definition any more."""
    return DefinitionChanged(f"{what}: resume with the definition that the run was started with, or start a new run")


def _dump_batch(batch: Batch) -> dict[str, Json]:
    return {
        **{name: getattr(batch, name) for name in _BATCH_VALUES},
        "step": batch.step.id,
        "items": list(batch.items),
        "path": list(batch.scope.path),
        "names": batch.scope.names,
        "done": sorted(batch.done),
        "failures": [[index, count] for index, count in sorted(batch.failures.items())],
    }


def _load_batch(data: dict[str, Json], step_list_at: StepListAt) -> Batch:
    path = tuple(data["path"])
    step = _find(step_list_at(path).steps, data["step"])
    if not isinstance(step, ParallelForEach):
        raise _moved(data["step"])
    values: dict[str, Any] = {name: data[name] for name in _BATCH_VALUES}
    return Batch(
        step=step,
        items=tuple(data["items"]),
        scope=Scope(path, data["names"]),
        done=frozenset(data["done"]),
        failures=dict(data["failures"]),
        **values,
    )


def _find(steps: Steps, step_id: str) -> Step | None:
    """A step at any depth: tasks in the background outlive the frame that began them."""
    for step in steps:
        if step.id == step_id:
            return step
        for children in branches(step).values():
            if (found := _find(children, step_id)) is not None:
                return found
    return None
