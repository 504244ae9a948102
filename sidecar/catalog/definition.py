"""Makes a workflow of a YAML document, or reports every problem of it, in the order of the file; and makes one of the
valid part of a document, so that it can be checked too."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from sidecar.catalog.yaml_format import Document, Location, as_json
from sidecar.errors import DefinitionError
from sidecar.model.language import PATTERN_WORDS
from sidecar.model.parameters import unknown
from sidecar.model.steps import STEP_CLASSES, StepBase
from sidecar.model.workflow import DefaultState, Workflow, numbered

_Model = TypeVar("_Model", bound=BaseModel)
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


def content(value: Any) -> Any:
    """The definition in a file's value."""
    return value[WRAPPER] if prefix(value) else value


def parse(document: Document) -> Workflow:
    """The workflow in a file, every step with an id; DefinitionError has every problem."""
    where = prefix(document.value)
    value, found = _mapping(document, "a workflow", where)
    reported = {location for location, _ in found}
    for location in _empty_keys(value, Workflow, ()):
        if (*where, *location) not in reported:
            found.append(((*where, *location), f"`{location[-1]}` has no value"))
    reported |= {location for location, _ in found}
    found += _duplicate_ids(value, where)
    workflow, wrong = _validated(Workflow, value)
    found += [((*where, *location), message) for location, message in wrong if (*where, *location) not in reported]
    if workflow is None or found or document.problems:
        raise _error(document, found)
    return numbered(workflow)


def parse_part(document: Document, model: type[_Model], noun: str) -> _Model:
    """What another kind of file has in it: an agent, or a prompt's front matter. DefinitionError has every problem."""
    value, found = _mapping(document, noun)
    part, wrong = _validated(model, value)
    if part is None or found or document.problems:
        raise _error(document, [*found, *wrong])
    return part


def _mapping(document: Document, noun: str, where: Location = ()) -> tuple[dict[str, Any], list[tuple[Location, str]]]:
    """The definition as JSON, and where the file has what JSON does not have."""
    found: list[tuple[Location, str]] = []
    value = as_json(document.value, found)
    value = value[WRAPPER] if where else value
    if not isinstance(value, dict):
        raise _error(document, found or [(where, f"{noun} is a mapping, `name: value` on each line")])
    return value, found


def _error(document: Document, found: Sequence[tuple[Location, str]]) -> DefinitionError:
    problems = [*document.problems, *(document.problem(location, message) for location, message in found)]
    return DefinitionError(sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _validated(model: type[_Model], value: object) -> tuple[_Model | None, list[tuple[Location, str]]]:
    """The model of a value, or None and what is wrong."""
    try:
        return model.model_validate(value), []
    except ValidationError as error:
        details = [detail for detail in error.errors(include_url=False) if not _is_echo(detail)]
    return None, [_problem(detail, model) for detail in details]


def _is_echo(detail: ErrorDetails) -> bool:
    """Whether a list is called empty only because everything in it is wrong, and reported."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> tuple[Location, str]:
    location, owner = _model_at(detail["loc"], model)
    return location, _message(detail, location, owner)


def _message(detail: ErrorDetails, location: Location, owner: type[BaseModel]) -> str:
    key = str(location[-1]) if location else ""
    named = f"`{key}`" if location and isinstance(location[-1], str) else f"number {int(key or 0) + 1} of this list"
    given = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            return _unknown_key(key, owner)
        case "missing":
            kind = _kind_below(owner, key)
            words = f": one of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else ""
            return f"`{key}` is missing{words}"
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
            is_predicate = text.startswith(("has ", "is ", "do ", "stands "))
            return text if text.startswith("`") else f"{named} {text}" if is_predicate else f"{named}: {text}"
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
    return unknown(key, _fields(owner), "key")


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
            yield location, f"`id`: {step_id!r} is used by another step"
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


def _model_at(loc: Sequence[int | str], top: type[BaseModel]) -> tuple[Location, type[BaseModel]]:
    """pydantic's location as one in the file, and the model that has, or should have, the last key of it.

    Behind the index of a step, pydantic puts the step's type: the file has no such level.
    """
    location: list[int | str] = []
    owner, kind = top, cast(Any, top)
    for part in loc:
        if part == "[key]":
            continue
        if kind is StepBase:
            kind = STEP_CLASSES[str(part)]
            continue
        location.append(part)
        owner = kind if _is_model(kind) else owner
        kind = _kind_below(kind, part)
    return tuple(location), owner


def _empty_keys(value: object, kind: Any, location: Location) -> Iterator[Location]:
    """Keys without a value, most likely forgotten. Where any JSON can stand, null can stand too."""
    if kind is None or kind is JsonValue:
        return
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _empty_keys(item, _kind_below(kind, index), (*location, index))
    if not isinstance(value, dict):
        return
    if kind is StepBase:
        kind = STEP_CLASSES.get(str(value.get("type")))
    for key, child in value.items():
        inner = _kind_below(kind, key)
        if child is None and inner is not None and inner is not JsonValue:
            yield (*location, key)
        else:
            yield from _empty_keys(child, inner, (*location, key))


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


def _kind_below(kind: Any, key: object) -> Any:
    """What a model has under a key, a list as items, a mapping as values; None for anything else."""
    if _is_model(kind):
        return _fields(kind).get(str(key))
    arguments = get_args(kind)
    if not arguments or get_origin(kind) not in (list, tuple, dict):
        return None
    return _bare(arguments[-1 if get_origin(kind) is dict else 0])


# In the place of a wrong step stands one that does nothing, so that all others keep their places.
_NOTHING = {"type": "user_message", "message": "nothing"}
_ROUNDS = 50  # each takes out all that is wrong as far as it is known; what stands around that may be wrong then
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


class AllWords:
    """Contains every word: it is not known what was lost."""

    def __contains__(self, word: object) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class InvalidPart:
    """A part that was taken out: where it stood, and whether a problem is about the part itself."""

    location: Location
    value: Any
    is_reported: bool


@dataclass(frozen=True, slots=True)
class ValidPart:
    """A workflow of all that is right in a file. `lost`: words of the rest, which may have brought names."""

    workflow: Workflow
    lost: Container[str]
    out: tuple[InvalidPart, ...]


def valid_part(document: Document) -> ValidPart | None:
    """What is right in the file; None where that is not enough for a workflow."""
    value = as_json(content(document.value), [])
    if not isinstance(value, dict):
        return None
    out: list[InvalidPart] = []
    for _ in range(_ROUNDS):
        try:
            workflow = numbered(Workflow.model_validate(value))
        except ValidationError as error:
            # From the back, so that what is taken out of a list or mapping does not hide what else is wrong in it.
            for detail in reversed(error.errors(include_url=False)):
                location, _ = _model_at(detail["loc"], Workflow)
                out += _remove(value, location, unknown=detail["type"] == "extra_forbidden")
        else:
            lost = frozenset(_WORD.findall(document.shadowed)).union(*(_words(part) for part in out))
            return ValidPart(workflow, lost, tuple(out))
    return None


def _words(part: InvalidPart) -> list[str]:
    return _WORD.findall(f"{part.location[-1:]} {part.value!r}")


def _remove(top: dict[str, Any], location: Location, *, unknown: bool) -> list[InvalidPart]:
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
            return [InvalidPart(place, holder.pop(part), is_whole and not unknown)]
        if place[-2] in STEP_LISTS:
            before, holder[int(part)] = holder[int(part)], _substitute(holder[int(part)])
            inner = holder[int(part)]
            lost = {k: v for k, v in before.items() if k not in inner} if isinstance(before, dict) else before
            return [InvalidPart(place, lost, is_reported=False)]
        holders.pop()  # an item of another list: without it the others would have other places
    top["steps"] = [dict(_NOTHING)]
    return []


def _substitute(step: object) -> dict[str, Any]:
    """A step that does nothing, around the same steps."""
    lists = STEP_LISTS
    inner = {key: value for key, value in step.items() if key in lists} if isinstance(step, dict) else {}
    inner = {key: value for key, value in inner.items() if isinstance(value, list)}
    for key in inner.keys() & {"body", "steps"}:
        return {"type": "foreach", "items": [], key: inner[key]}
    if inner.keys() & {"then", "else"}:
        branches = {key: value for key, value in inner.items() if key in ("then", "else")}
        return {"type": "conditional", "condition": True, "then": [], **branches}
    return dict(_NOTHING)
