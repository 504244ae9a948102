"""Parameters: what a definition asks of its caller, the check of given values, and templates over them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, Strict, ValidationInfo, field_validator

from sidecar.errors import InputError
from sidecar.model.language import ParameterName, StrictModel

Type = Literal["string", "number", "integer", "boolean", "array", "object"]
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class Declaration(StrictModel):
    """What is asked for, without its name: workflows have the name as the key."""

    model_config = ConfigDict(strict=True)

    type: Type = Field(default="string", description="The type of the value.")
    description: str = Field(default="", description="What the value is for; shown by `--help`.")
    required: bool | None = Field(
        default=None, description="Whether the caller has to give it. Without this key: yes, unless there is a default."
    )
    default: JsonValue = Field(default=None, description="The value if the caller gives none.")
    choices: Annotated[tuple[JsonValue, ...], Strict(False), Field(min_length=1)] | None = Field(
        default=None, description="The only values that are accepted."
    )

    @field_validator("default")
    @classmethod
    def _default_is_of_its_type(cls, value: JsonValue, info: ValidationInfo) -> JsonValue:
        if value is not None and "type" in info.data and not is_of_type(value, info.data["type"]):
            raise ValueError(f"is not of type {info.data['type']}")
        return value

    @field_validator("choices")
    @classmethod
    def _choices_fit(cls, value: tuple[JsonValue, ...] | None, info: ValidationInfo) -> tuple[JsonValue, ...] | None:
        for choice in value or ():
            if "type" in info.data and not is_of_type(choice, info.data["type"]):
                raise ValueError(f"{choice!r} is not of type {info.data['type']}; a text may need quotes")
        if value and info.data.get("default") is not None and info.data["default"] not in value:
            raise ValueError("do not have the default among them")
        return value

    @property
    def is_required(self) -> bool:
        """As declared; else a parameter without a default is required."""
        return self.default is None if self.required is None else self.required


class Parameter(Declaration):
    """One parameter, as a definition declares it."""

    name: ParameterName = Field(description="The name, as the prompt template uses it.")


def _names_differ(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    names = [parameter.name for parameter in parameters]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"parameter {name!r} is declared twice")
    return parameters


Parameters: TypeAlias = Annotated[tuple[Parameter, ...], AfterValidator(_names_differ)]


def misfit(value: object, declaration: Declaration) -> str | None:
    """What is wrong with a value; None where it fits."""
    if not is_of_type(value, declaration.type):
        return f"has to be of type {declaration.type}"
    if declaration.choices is not None and value not in declaration.choices:
        return f"has to be one of {', '.join(map(str, declaration.choices))}"
    return None


def is_of_type(value: object, name: str) -> bool:
    """Whether a value is of one of our types. Python takes a bool for a number; we do not."""
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _PYTHON_TYPES[name])


def bind(parameters: Sequence[Parameter], given: Mapping[str, object], subject: str) -> dict[str, Any]:
    """Every declared parameter with its value; one error that names everything wrong with what was given."""
    declared = {parameter.name: parameter for parameter in parameters}
    problems = [unknown(name, declared, "parameter") for name in given if name not in declared]
    values: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name not in given:
            if parameter.is_required and parameter.default is None:
                problems.append(f"parameter {parameter.name!r} is required")
            values[parameter.name] = parameter.default
            continue
        values[parameter.name] = given[parameter.name]
        problem = misfit(given[parameter.name], parameter)
        if problem:
            problems.append(f"parameter {parameter.name!r} {problem}")
    if problems:
        raise InputError(f"{subject}: {'; '.join(problems)}")
    return values


def unknown(name: str, known: Iterable[str], noun: str) -> str:
    """The message for a name that is not known: with the nearest name, or all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    if near:
        return f"unknown {noun} {name!r}; did you mean {near[0]!r}?"
    return f"unknown {noun} {name!r}; available: {', '.join(names)}" if names else f"unknown {noun} {name!r}"


_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def template_names(template: str) -> list[str]:
    """The names that a template mentions, in order; ValueError where it holds anything but names."""
    found = [match.group(1).strip() for match in _EXPRESSION.finditer(template)]
    for expression in found:
        if not _NAME.fullmatch(expression):
            raise ValueError(f"{{{{ {expression} }}}} is not the name of a parameter")
    return list(dict.fromkeys(found))


def sole_template_name(template: str) -> str | None:
    """The name, where the whole template is one expression: it then stands for the value itself, not for its text."""
    match = _EXPRESSION.fullmatch(template.strip())
    return match.group(1).strip() if match else None


def render_template(template: str, values: Mapping[str, object]) -> str:
    """The template with its values, in one pass: a value that looks like a template stays what it is."""
    return _EXPRESSION.sub(lambda match: _as_text(values[match.group(1).strip()]), template)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
