"""What is left of a broken definition when all that is wrong is taken out, so that the rest can be checked too."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sidecar.catalog import definition, json_values, kinds
from sidecar.model.numbering import numbered
from sidecar.model.workflow import Workflow

if TYPE_CHECKING:
    from collections.abc import Container

    from sidecar.catalog.yaml_format import Document

    Location = tuple[int | str, ...]

# In the place of a wrong step stands one that does nothing, so that all others keep their places.
_NOTHING = {"type": "user_message", "message": "nothing"}
_ROUNDS = 50  # each takes out all that is wrong as far as it is known; what stands around that may be wrong then
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


class Everything:
    """Contains every word: nobody knows what was lost."""

    def __contains__(self, word: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Out:
    """A part that was taken out: where it stood, and whether it is itself what a problem tells of."""

    location: Location
    value: Any
    is_told: bool


@dataclass(frozen=True, slots=True)
class Remains:
    """A workflow of all that is right in a file. `lost`: words of the rest, which may have brought names."""

    workflow: Workflow
    lost: Container[str]
    out: tuple[Out, ...]


def of(document: Document) -> Remains | None:
    """What is right in the file; None where that is not enough for a workflow."""
    where = definition.prefix(document.value)
    value = json_values.replaced(document.value[where[0]] if where else document.value)
    if not isinstance(value, dict):
        return None
    value = deepcopy(value)
    out: list[Out] = []
    for _ in range(_ROUNDS):
        try:
            workflow = numbered(Workflow.model_validate(value))
        except ValidationError as error:
            # From the back, so that what is taken out of a list or mapping does not hide what else is wrong in it.
            for detail in reversed(error.errors(include_url=False)):
                out += _take_out(value, kinds.resolve(detail["loc"])[0], unknown=detail["type"] == "extra_forbidden")
        else:
            lost = frozenset(_WORD.findall(document.shadowed)).union(*(_words(part) for part in out))
            return Remains(workflow, lost, tuple(out))
    return None


def _words(part: Out) -> list[str]:
    return _WORD.findall(f"{part.location[-1:]} {part.value!r}")


def _take_out(top: dict[str, Any], location: Location, *, unknown: bool) -> list[Out]:
    """Take out the value at the place; where it is a step, or lacks something, the innermost step or key around."""
    holders: list[tuple[Any, int | str]] = []
    value: Any = top
    for part in location:
        is_there = part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
        if not is_there:
            break
        holders.append((value, part))
        value = value[part]
    is_whole = len(holders) == len(location)
    while holders:
        holder, part = holders[-1]
        place = location[: len(holders)]
        if isinstance(holder, dict):
            return [Out(place, holder.pop(part), is_whole and not unknown)]
        if place[-2] in definition.STEP_LISTS:
            before, holder[int(part)] = holder[int(part)], _instead(holder[int(part)])
            inner = holder[int(part)]
            lost = {k: v for k, v in before.items() if k not in inner} if isinstance(before, dict) else before
            return [Out(place, lost, is_told=False)]
        holders.pop()  # an item of another list: without it the others would have other places
    top["steps"] = [dict(_NOTHING)]
    return []


def _instead(step: object) -> dict[str, Any]:
    """A step that does nothing, around the same steps."""
    lists = definition.STEP_LISTS
    inner = {key: value for key, value in step.items() if key in lists} if isinstance(step, dict) else {}
    inner = {key: value for key, value in inner.items() if isinstance(value, list)}
    for key in inner.keys() & {"body", "steps"}:
        return {"type": "foreach", "items": [], key: inner[key]}
    if inner.keys() & {"then", "else"}:
        branches = {key: value for key, value in inner.items() if key in ("then", "else")}
        return {"type": "conditional", "condition": True, "then": [], **branches}
    return dict(_NOTHING)
