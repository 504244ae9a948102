"""What is left of a broken definition when all that is wrong is taken out, so that the rest can be checked too."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sidecar.catalog import definition, kinds
from sidecar.model.numbering import numbered
from sidecar.model.workflow import Workflow

if TYPE_CHECKING:
    from sidecar.catalog.yaml_format import Document

# In the place of a wrong step stands one that does nothing, so that all others keep their places.
_NOTHING = {"type": "user_message", "message": "nothing"}
_ROUNDS = 5


def of(document: Document) -> Workflow | None:
    """A workflow of all that is right in the file; None where that is not enough for one."""
    where = definition.prefix(document.value)
    value = document.value[where[0]] if where else document.value
    if not isinstance(value, dict):
        return None
    value = deepcopy(value)
    for _ in range(_ROUNDS):
        try:
            return numbered(Workflow.model_validate(value))
        except ValidationError as error:
            # From the back, so that what is taken out of a mapping does not hide what else is wrong in it.
            for detail in reversed(error.errors(include_url=False)):
                if not _take_out(value, kinds.resolve(detail["loc"])[0]):
                    return None
    return None


def _take_out(value: Any, location: tuple[int | str, ...]) -> bool:
    """Take out the innermost step around the place, or else the innermost key; whether there was one."""
    holders: list[tuple[Any, int | str]] = []
    for part in location:
        is_there = part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
        if not is_there:
            break
        holders.append((value, part))
        value = value[part]
    steps = [(holder, part) for holder, part in holders if isinstance(holder, list) and _is_step(holder[int(part)])]
    for holder, part in reversed(steps or holders[-1:]):
        if isinstance(holder, list):
            holder[int(part)] = dict(_NOTHING)
        else:
            del holder[part]
        return True
    return False


def _is_step(value: object) -> bool:
    return isinstance(value, dict) and ("type" in value or "id" in value)
