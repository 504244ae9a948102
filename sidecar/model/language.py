"""The scalars of the workflow language: what a duration, a count, a condition or a path may be, and which of them
hold expressions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, PlainValidator, Strict, WithJsonSchema

from sidecar.model import duration

TEMPLATE_OPENS = "{{"


class Role(StrEnum):
    """What a text with expressions in it is for. It stands in the annotation of the field that holds the text."""

    CONDITION = "condition"  # one expression, in {{ }} or bare; its truth counts
    CHECK = "check"  # `validate` of a computed field: one bare expression over `output`
    TRANSFORM = "transform"  # an expression, an object literal, or a body with `return`, over `input`
    SOURCE = "source"  # what a computed field is computed from
    PATH = "path"  # where an update writes; {{ }} in it is one key
    ITEMS = "items"  # {{ }} that yields a list
    COMMAND = "command"  # a template that a shell reads, or one argument of a command that is a list
    PATTERN = "pattern"  # a regular expression
    MESSAGE = "message"  # a template for a person
    PROMPT = "prompt"  # a template for an agent
    TEMPLATE = "template"  # a template for the engine: a name, a number, a duration, a directory
    VALUE = "value"  # any JSON, each text in it a template


class StrictModel(BaseModel):
    """Every part of a definition: frozen, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def has_template(value: object) -> bool:
    """Whether a value is a text with `{{ }}` in it, which is something else once the run evaluates it."""
    return isinstance(value, str) and TEMPLATE_OPENS in value


def _duration(value: object) -> float | str:
    return str(value) if has_template(value) else duration.seconds(value)


def _positive_duration(value: object) -> float | str:
    result = _duration(value)
    if result == 0:
        raise ValueError("has to be longer than nothing")
    return result


def _count(least: int) -> Any:
    def check(value: object) -> int | str:
        if has_template(value):
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"has to be a whole number, {least} or more, or {{{{ }}}} that yields one")
        return value

    return check


def _condition(value: object) -> str | bool:
    if isinstance(value, bool) or (isinstance(value, str) and value.strip()):
        return value
    raise ValueError("has to be a condition, such as {{ count > 0 }}, or true or false")


def _items(value: object) -> str | list[Any]:
    if isinstance(value, list) or (isinstance(value, str) and has_template(value)):
        return value
    raise ValueError("has to be a list, or {{ }} that yields one")


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError("has to say something")
    return value


def check_no_nul(value: str) -> str:
    """The text; ValueError where execve would cut it, or refuse it with a message about something else."""
    if "\0" in value:
        raise ValueError("a NUL byte cannot be passed to a program")
    return value


def _command(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return check_no_nul(_not_blank(value))
    if isinstance(value, list | tuple) and value and all(isinstance(word, str) for word in value):
        _not_blank(value[0])
        return tuple(map(check_no_nul, value))
    raise ValueError("has to be a text for the shell, or a list of texts: a program and its arguments")


def _sources(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(isinstance(source, str) and source.strip() for source in value):
        return tuple(value)
    raise ValueError("has to be a path, such as raw.files, or a list of paths")


def _import_path(value: str) -> str:
    if value.startswith(("/", "~")) or "\0" in value or not value.endswith((".yaml", ".yml")):
        raise ValueError(f"{value!r} is no import: a .yaml or .yml file, relative to this one")
    return value


def _writable(value: str) -> str:
    root = value.replace("[", ".").partition(".")[0]
    if root in ("raw", "state") and len(value) > len(root) + 1:
        return value
    why = "computed fields follow from others" if root == "computed" else "a write goes to `raw.` or `state.`"
    raise ValueError(f"{value!r} cannot be written: {why}; write for example raw.{value.rpartition('.')[2] or 'name'}")


# Letters, digits, `-`, `_`, `:`: a name can never leave its directory, and an id never looks like a position.
NAME_PATTERN = r"^[A-Za-z0-9_:-]+$"
IDENTIFIER_PATTERN = r"^[A-Za-z_$][A-Za-z0-9_$]*$"
PARAMETER_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
VARIABLE_PATTERN = r"^[^=\x00]+$"
PATTERN_WORDS = {
    NAME_PATTERN: "letters, digits, '-', '_' and ':' only",
    IDENTIFIER_PATTERN: "letters, digits, '_' and '$' only, and no digit first",
    PARAMETER_PATTERN: "letters, digits and '_' only, and no digit first",
    VARIABLE_PATTERN: "the name of a variable has no '='",
}
_TEMPLATE = {"type": "string", "pattern": r"\{\{"}
_TEXT = {"type": "string", "pattern": r"\S"}
_DURATION = {
    "type": "string",
    "pattern": r"^\s*([0-9]+(\.[0-9]+)?\s*([mM][sS]|[sSmMhHdD])\s*)+$"  # 30s, 1h30m
    r"|^\s*[0-9]+(\.[0-9]+)?\s*$"  # milliseconds in quotes
    r"|\{\{",
}


def _either(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas)})


# Seconds, or a template that yields a duration as people write it.
Duration: TypeAlias = Annotated[
    float | str, PlainValidator(_duration), _either({"type": "number", "minimum": 0}, _DURATION)
]
PositiveDuration: TypeAlias = Annotated[
    float | str, PlainValidator(_positive_duration), _either({"type": "number", "exclusiveMinimum": 0}, _DURATION)
]
Count: TypeAlias = Annotated[
    int | str, PlainValidator(_count(0)), _either({"type": "integer", "minimum": 0}, _TEMPLATE)
]
PositiveCount: TypeAlias = Annotated[
    int | str, PlainValidator(_count(1)), _either({"type": "integer", "minimum": 1}, _TEMPLATE)
]
Cost: TypeAlias = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Flag: TypeAlias = Annotated[bool, Strict()]
Condition: TypeAlias = Annotated[str | bool, PlainValidator(_condition), _either(_TEXT, {"type": "boolean"})]
Items: TypeAlias = Annotated[str | list[JsonValue], PlainValidator(_items), _either({"type": "array"}, _TEMPLATE)]
Text: TypeAlias = Annotated[str, AfterValidator(_not_blank), Field(json_schema_extra={"pattern": r"\S"})]
Command: TypeAlias = Annotated[
    str | tuple[str, ...],
    PlainValidator(_command),
    _either(_TEXT, {"type": "array", "minItems": 1, "prefixItems": [_TEXT], "items": {"type": "string"}}),
]
Sources: TypeAlias = Annotated[
    str | tuple[str, ...], PlainValidator(_sources), _either(_TEXT, {"type": "array", "items": _TEXT, "minItems": 1})
]
Import: TypeAlias = Annotated[
    str, AfterValidator(_import_path), Field(json_schema_extra={"pattern": r"^[^/~\x00][^\x00]*\.ya?ml$"})
]
Path: TypeAlias = Annotated[
    str, AfterValidator(_writable), Field(json_schema_extra={"pattern": r"^(raw|state)[.\[][\s\S]"})
]
Word: TypeAlias = Annotated[str, AfterValidator(check_no_nul)]
VariableName: TypeAlias = Annotated[str, Field(pattern=VARIABLE_PATTERN)]
Name: TypeAlias = Annotated[str, Field(pattern=NAME_PATTERN)]
# A name that an expression can use as it is.
Identifier: TypeAlias = Annotated[str, Field(pattern=IDENTIFIER_PATTERN)]
ParameterName: TypeAlias = Annotated[str, Field(pattern=PARAMETER_PATTERN)]
