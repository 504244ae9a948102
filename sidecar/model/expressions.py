"""Every text of a workflow that holds expressions: where it stands, what it is for, which steps are around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from pydantic import BaseModel

from sidecar.model.language import Role, has_template
from sidecar.model.steps import StepBase
from sidecar.model.workflow import SubAgentTask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.model.workflow import Workflow

Location: TypeAlias = tuple[int | str, ...]
# These are templates: without {{ }} they are just text. The others are code, or paths, whatever they look like.
_TEMPLATES = frozenset({Role.ITEMS, Role.COMMAND, Role.MESSAGE, Role.PROMPT, Role.TEMPLATE, Role.VALUE})


@dataclass(frozen=True, slots=True)
class Site:
    """A text with expressions."""

    location: Location  # its path in the file: ("steps", 0, "body", 2, "command")
    role: Role
    text: str
    steps: tuple[StepBase, ...] = ()  # the steps around it, outermost first; the last one has it
    task: str | None = None  # the sub-agent task that it belongs to

    @property
    def step(self) -> StepBase | None:
        """The step that has it; None for the schema, the defaults and the like."""
        return self.steps[-1] if self.steps else None


def sites(workflow: Workflow, prefix: Location = ()) -> Iterator[Site]:
    """All of them, in the order of the model; `prefix` is `("workflow",)` in a file with that wrapper."""
    yield from _in_model(workflow, Site(prefix, Role.VALUE, ""))


def _in_model(model: BaseModel, around: Site) -> Iterator[Site]:
    for name, field in type(model).model_fields.items():
        if name not in model.model_fields_set:
            continue  # a default is ours, and in no file
        value = getattr(model, name)
        inside = replace(around, location=(*around.location, field.alias or name))
        role = next((entry for entry in field.metadata if isinstance(entry, Role)), None)
        if role is None:
            yield from _in_models(value, inside)
        else:
            yield from _in_value(value, replace(inside, role=role))


def _in_models(value: object, around: Site) -> Iterator[Site]:
    """A model, or a list or mapping of models; anything else holds no expression."""
    if isinstance(value, StepBase):
        yield from _in_model(value, replace(around, steps=(*around.steps, value)))
    elif isinstance(value, BaseModel):
        yield from _in_model(value, around)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _in_models(item, replace(around, location=(*around.location, index)))
    elif isinstance(value, dict):
        for key, item in value.items():
            task = key if isinstance(item, SubAgentTask) else around.task
            yield from _in_models(item, replace(around, location=(*around.location, key), task=task))


def _in_value(value: object, around: Site) -> Iterator[Site]:
    if isinstance(value, str):
        if around.role not in _TEMPLATES or has_template(value):
            yield replace(around, text=value)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _in_value(item, replace(around, location=(*around.location, index)))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _in_value(item, replace(around, location=(*around.location, key)))
