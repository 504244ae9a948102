"""A workflow from a YAML document; every problem at once, in the order of the file, in words that say what is right."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sidecar.catalog import json_values, kinds
from sidecar.errors import DefinitionError
from sidecar.model.language import PATTERN_WORDS
from sidecar.model.numbering import numbered
from sidecar.model.parameters import unknown
from sidecar.model.steps_control import STEP_CLASSES
from sidecar.model.workflow import DefaultState, Workflow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from sidecar.catalog.yaml_format import Document

    Location = tuple[int | str, ...]

WRAPPER = "workflow"
STEP_LISTS = frozenset({"steps", "body", "then", "else", "on_failure", "cleanup_on_error"})
# What the first drafts of the language had, and what serves instead.
_NOT_TAKEN = {
    "orchestrator_behavior": "the orchestrator's prompt says how it behaves",
    "on_high_context_usage": "an agent that runs out of context calls the tool workflow_checkpoint",
    "load_from_checkpoint": "a resumed run always has its whole state",
    "exclude": "a resumed run always has its whole state",
}
_LONGEST_SHOWN = 60
_PLAIN_MESSAGES = {
    "string_type": "has to be text; put it in quotes",
    "bool_type": "has to be true or false",
    "int_type": "has to be a whole number",
    "float_type": "has to be a number",
    "tuple_type": "has to be a list",
    "dict_type": "has to be a mapping, `name: value` on each line",
    "model_type": "has to be a mapping, `name: value` on each line",
    "model_attributes_type": "has to be a mapping with a `type`",
    "too_short": "must not be empty",
}


def prefix(value: object) -> tuple[str, ...]:
    """Where the definition stands in a file's value: at the top, or below the one key `workflow`."""
    return (WRAPPER,) if isinstance(value, dict) and list(value) == [WRAPPER] else ()


def parse(document: Document) -> Workflow:
    """The workflow in a file, every step with an id; DefinitionError has every problem."""
    found = list(json_values.not_json(document))
    told = {location for location, _ in found}  # of which there is nothing more to say
    where = prefix(document.value)
    value = json_values.replaced(document.value) if found else document.value
    value = value[WRAPPER] if where else value
    if not isinstance(value, dict):
        found = found or [(where, "a workflow is a mapping, `name: value` on each line")]
        raise DefinitionError([*document.problems, *(document.problem(*each) for each in found)])
    for location in kinds.empty_keys(value):
        if (*where, *location) not in told:
            found.append(((*where, *location), f"`{location[-1]}` has no value"))
    told |= {location for location, _ in found}
    found += _duplicate_ids(value, where)
    workflow = None
    try:
        workflow = Workflow.model_validate(value)
    except ValidationError as error:
        details = [_problem(detail, where) for detail in error.errors(include_url=False) if not _is_echo(detail)]
        found += [(location, message) for location, message in details if location not in told]
    if workflow is None or found or document.problems:
        problems = [*document.problems, *(document.problem(location, message) for location, message in found)]
        raise DefinitionError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return numbered(workflow)


def _is_echo(detail: ErrorDetails) -> bool:
    """Whether a list is called empty only because everything in it is wrong, and reported."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _problem(detail: ErrorDetails, where: Location) -> tuple[Location, str]:
    location, model = kinds.resolve(detail["loc"])
    return (*where, *location), _message(detail, location, model)


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _message(detail: ErrorDetails, location: Location, owner: type[BaseModel]) -> str:
    key = str(location[-1]) if location else ""
    named = f"`{key}`" if location and isinstance(location[-1], str) else f"number {int(key or 0) + 1} of this list"
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_key(key, owner)
        case "missing":
            return f"`{key}` is missing"
        case "union_tag_invalid":
            return unknown(str(detail["ctx"]["tag"]), STEP_CLASSES, "step type")
        case "union_tag_not_found":
            return f"a step needs a `type`, one of {', '.join(STEP_CLASSES)}"
        case "literal_error":
            return f"{named}: {_shown(given)} is not {detail['ctx']['expected']}{_near(given, detail)}"
        case "string_pattern_mismatch":
            return (
                f"{named}: {_shown(given)} cannot be that: {PATTERN_WORDS.get(detail['ctx']['pattern'], 'look at it')}"
            )
        case "value_error":
            text = str(detail["ctx"]["error"])
            return text if text.startswith("`") else f"{named} {text}"
        case "greater_than":
            return f"{named} has to be greater than {detail['ctx']['gt']:g}, not {_shown(given)}"
        case kind if kind in _PLAIN_MESSAGES:
            return f"{named} {_PLAIN_MESSAGES[kind]}"
        case _:
            return f"{named}: {detail['msg']}"


def _unknown_key(key: str, owner: type[BaseModel]) -> str:
    if key in _NOT_TAKEN:
        return f"{key!r} is not part of the language: {_NOT_TAKEN[key]}"
    if key == WRAPPER and owner is Workflow:
        return "`workflow` wraps a whole definition: nothing can stand beside it"
    if owner is DefaultState and key == "computed":
        return "computed fields have no defaults: they follow from others"
    return unknown(key, _keys(owner), "key")


def _near(given: object, detail: ErrorDetails) -> str:
    expected = [word.strip("'") for word in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(", ")]
    near = get_close_matches(str(given), expected, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"


def _duplicate_ids(value: dict[str, Any], where: Location) -> Iterator[tuple[Location, str]]:
    """Ids that two steps have. Asked of the file's value, so that it is found beside whatever else is wrong."""
    first: dict[str, Location] = {}
    for step_id, location in _ids(value, where):
        if step_id in first:
            yield location, f"`id`: {step_id!r} is the id of another step too, and has to be of one only"
        first.setdefault(step_id, location)


def _ids(value: object, location: Location) -> Iterator[tuple[str, Location]]:
    if not isinstance(value, dict):
        return
    for key, child in value.items():
        here = (*location, key)
        if key in STEP_LISTS and isinstance(child, list):
            for index, step in enumerate(child):
                if isinstance(step, dict) and isinstance(step.get("id"), str):
                    yield step["id"], (*here, index, "id")
                yield from _ids(step, (*here, index))
        elif key in ("error_handling", "sub_agent_tasks") or location[-1:] == ("sub_agent_tasks",):
            yield from _ids(child, here)
