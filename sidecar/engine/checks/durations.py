"""Durations that say milliseconds where their author probably meant seconds."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from sidecar.engine.checks import walk
from sidecar.model import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel

    from sidecar.engine.checks.walk import Location
    from sidecar.engine.findings import Notes
    from sidecar.model.workflow import Workflow


def check(workflow: Workflow, notes: Notes) -> None:
    """Note each of them. The file is asked for what was written: the model has seconds, whatever that was."""
    for where in _durations(workflow):
        written: Any = reduce(lambda value, part: value[part], (*notes.prefix, *where), notes.document.value)
        doubt = duration.doubt(written)
        if doubt is not None:
            notes.warning(where, f"`{where[-1]}`: {doubt}")


def _durations(workflow: Workflow) -> Iterator[Location]:
    owners: list[tuple[BaseModel, Location]] = [
        (workflow.limits, ("limits",)),
        (workflow.error_handling, ("error_handling",)),
        *walk.steps(workflow),
    ]
    for owner, where in owners:
        for key, name in duration.keys(type(owner)):
            if name in owner.model_fields_set:
                yield (*where, key)
