"""A state as plain JSON and back; the ids of steps are the anchors by which it finds its place in the definition."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sidecar.engine.program import parts
from sidecar.engine.program.actions import Scope
from sidecar.engine.program.frames import Batch, Ending, Failure, Frame, State
from sidecar.engine.program.parts import Part
from sidecar.errors import DefinitionChanged, SidecarError
from sidecar.model.steps_control import ParallelForEach, branches

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.engine.program.actions import Json
    from sidecar.model.steps_control import Step, Steps

    # The part that a chain of `include_workflow` steps leads to, by their ids; () is the run's own.
    PartAt = Callable[[tuple[str, ...]], Part]

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
        None if ending is None else Ending(**ending),
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
        if each["branch"] == "part":
            if below is not None:
                path = (*path, below.id)
            part = part_at(path)
        steps = part.steps if part is not None else _branch(below, each)
        place = parts.find(steps, each["step"])
        _same_type(steps[place], each["type"])
        values: dict[str, Any] = {name: each[name] for name in _FRAME_VALUES}
        frames.append(Frame(steps, place, each["branch"], part, **values))
    return tuple(frames)


def _branch(step: Step | None, data: dict[str, Json]) -> Steps:
    steps = None if step is None else parts.inner(step, data["branch"])
    if steps is None:
        raise parts.gone(data["step"])
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
        raise parts.gone(data["step"])
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
