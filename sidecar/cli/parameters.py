"""Reads the values of parameters from words and `-p KEY=VALUE`, as the types that a definition declares."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from sidecar.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sidecar.model.parameters import Parameter

_EXAMPLES = {
    "number": "a number, such as 2.5",
    "integer": "a whole number, such as 3",
    "boolean": "true or false",
    "array": 'a list in JSON, such as ["a", "b"]',
    "object": 'an object in JSON, such as {"a": 1}',
}


def usage(command: str, parameters: Sequence[Parameter]) -> str:
    """How a definition is called: `sidecar flow run build TARGET [-p jobs=INTEGER]`."""
    required = [parameter.name.upper() for parameter in parameters if is_positional(parameter)]
    optional = [f"[-p {one.name}={one.type.upper()}]" for one in parameters if not is_positional(one)]
    return " ".join([command, *required, *optional])


def given_values(
    parameters: Sequence[Parameter],
    words: Sequence[str],
    named: Iterable[str],
    older: Iterable[str] = (),
    *,
    filled: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Values by name: `named` beats `older` (`--var`), and words fill what is required and not named yet.

    `filled`: the names of parameters that something else gives. InputError says everything that is wrong.
    """
    declared = {parameter.name: parameter for parameter in parameters}
    problems: list[str] = []
    texts: dict[str, str] = {}
    for option, entries in (("--var", older), ("-p", named)):
        for entry in entries:
            name, equals, text = entry.partition("=")
            if not equals or not name:
                problems.append(f"{option} takes KEY=VALUE, not {entry!r}")
            else:
                texts[name] = text
    places = [one.name for one in parameters if is_positional(one) and one.name not in texts.keys() | filled]
    if len(words) > len(places):
        problems.append(f"too many words: {' '.join(map(repr, words[len(places) :]))}; a text needs quotes")
    texts |= dict(zip(places, words, strict=False))
    values: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            values[name] = value(text, declared.get(name))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise InputError("; ".join(problems))
    return values


def missing(parameters: Sequence[Parameter], values: dict[str, Any], filled: frozenset[str]) -> list[Parameter]:
    """What is required and was not given."""
    return [one for one in parameters if is_positional(one) and one.name not in values and one.name not in filled]


def value(text: str, parameter: Parameter | None) -> Any:
    """A text stays one where a text is declared; everything else is JSON. ValueError says what would be right."""
    if parameter is None or parameter.type == "string":
        return text
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        found = None
    if not _READS[parameter.type](found):
        raise ValueError(f"{parameter.name} has to be {_EXAMPLES[parameter.type]}, not {text!r}")
    return found


def with_usage(error: InputError, command: str, parameters: Sequence[Parameter]) -> InputError:
    """The same, with how it is to be called."""
    return InputError(f"{error}; usage: {usage(command, parameters)}")


def is_positional(parameter: Parameter) -> bool:
    """Whether a word without a name is for it: it is required, and nothing stands in for it."""
    return parameter.is_required and parameter.default is None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _is_number(found: object) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)


_READS: dict[str, Callable[[object], bool]] = {
    "number": _is_number,
    "integer": lambda found: isinstance(found, int) and not isinstance(found, bool),
    "boolean": lambda found: isinstance(found, bool),
    "array": lambda found: isinstance(found, list),
    "object": lambda found: isinstance(found, dict),
}
