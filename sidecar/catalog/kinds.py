"""Which model stands at which place of a workflow file."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from sidecar.model.steps import StepBase
from sidecar.model.steps_control import STEP_CLASSES
from sidecar.model.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Location = tuple[int | str, ...]


def resolve(loc: Sequence[int | str]) -> tuple[Location, type[BaseModel]]:
    """pydantic's location as one in the file, and the model that has, or should have, the last key of it.

    Behind the index of a step, pydantic puts the step's type: the file has no such level.
    """
    location: list[int | str] = []
    owner: type[BaseModel] = Workflow
    kind: Any = Workflow
    for part in loc:
        if part == "[key]":
            continue
        if kind is StepBase:
            kind = STEP_CLASSES[str(part)]
            continue
        location.append(part)
        if _is_model(kind):
            owner, kind = kind, _field_kind(kind, part)
        else:
            kind = _item_kind(kind)
    return tuple(location), owner


def empty_keys(value: object) -> Iterator[Location]:
    """Keys with nothing behind them, most likely forgotten. Where any JSON can stand, nothing can stand too."""
    yield from _empty(value, Workflow, ())


def _empty(value: object, kind: Any, location: Location) -> Iterator[Location]:
    if kind is None or kind is JsonValue:
        return
    if isinstance(value, list):
        inner = _item_kind(kind)
        for index, item in enumerate(value):
            yield from _empty(item, inner, (*location, index))
    if not isinstance(value, dict):
        return
    if kind is StepBase:
        kind = STEP_CLASSES.get(str(value.get("type")))
    for key, child in value.items():
        inner = _field_kind(kind, key) if _is_model(kind) else _item_kind(kind)
        if child is None and inner is not None and inner is not JsonValue:
            yield (*location, key)
        else:
            yield from _empty(child, inner, (*location, key))


def _bare(kind: Any) -> Any:
    """A type without what annotates it and without `None`; StepBase for the union of all steps."""
    while True:
        if hasattr(kind, "__metadata__"):
            kind = get_args(kind)[0]
            continue
        members = [member for member in get_args(kind) if member is not type(None)]
        if get_origin(kind) not in (Union, UnionType):
            return kind
        if len(members) > 1:
            return StepBase if all(_is_model(member) for member in members) else kind
        kind = members[0]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


@cache
def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: _bare(field.annotation) for name, field in model.model_fields.items()}


def _field_kind(model: type[BaseModel], key: object) -> Any:
    return _fields(model).get(str(key))


def _item_kind(kind: Any) -> Any:
    """What a list has as items, a mapping as values; None for anything else."""
    arguments = get_args(kind)
    if not arguments or get_origin(kind) not in (list, tuple, dict):
        return None
    return _bare(arguments[-1 if get_origin(kind) is dict else 0])
