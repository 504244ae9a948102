"""Prompts by name: `.swissarmyhammer/prompts/<name>.md` of the project or the person, else the built-in ones; each is
front matter and a template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from sidecar.catalog import naming, yaml_format
from sidecar.catalog.definition import parse_part
from sidecar.errors import DefinitionError, Problem
from sidecar.model.language import StrictModel
from sidecar.model.parameters import Parameter, Parameters, unknown

if TYPE_CHECKING:
    from sidecar.catalog.naming import Source


_FENCE = re.compile(r"^---[ \t]*\r?$", re.MULTILINE)
_PLAIN_NAME = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}", re.ASCII)


class FrontMatter(StrictModel):
    """What stands between the two lines of dashes."""

    title: str = ""
    description: str = ""
    # None: every name that the template mentions is a parameter.
    parameters: Parameters | None = Field(default=None)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with its name and where it came from; `body` is a template over its parameters."""

    name: str
    source: Source
    loaded_from: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    body: str


def find(root: str, name: str) -> Prompt:
    """The prompt of that name. A broken file is an error, never a reason to take the next one of that name."""
    return _prompt(name, *naming.find(root, "prompts", name))


def listing(root: str) -> tuple[list[Prompt], list[str]]:
    """All prompts of a project, by name, and what is wrong with the files that define none."""
    prompts: list[Prompt] = []
    problems: list[str] = []
    for name, (source, path) in naming.listed(root, "prompts").items():
        try:
            prompts.append(_prompt(name, source, path))
        except DefinitionError as error:
            problems.extend(error.problems)
    return prompts, problems


def _prompt(name: str, source: Source, path: str | None) -> Prompt:
    assert path is not None  # prompts are files, the built-in ones too
    front, body, first_line = _parts(yaml_format.text_of(path), path)
    used = list(dict.fromkeys(match.group(1) for match in _PLAIN_NAME.finditer(body)))
    if front.parameters is None:
        declared = tuple(Parameter(name=parameter) for parameter in used)
    else:
        declared = front.parameters
        _check_names(declared, body, path, first_line)
    return Prompt(name, source, path, front.title, front.description, declared, body)


def _parts(text: str, path: str) -> tuple[FrontMatter, str, int]:
    """The front matter, the template, and the line on which that begins."""
    text = text.removeprefix("\ufeff")
    opening = _FENCE.match(text)
    if opening is None:
        return FrontMatter(), text, 1
    closing = _FENCE.search(text, opening.end())
    if closing is None:
        raise DefinitionError([Problem.at(path, (1, 1), "the front matter has no second line of dashes")])
    # With the line break behind the first fence, each line keeps its number.
    document = yaml_format.parse(text[opening.end() : closing.start()], path)
    body = text[closing.end() :].removeprefix("\n")
    front = FrontMatter() if document.value is None else parse_part(document, FrontMatter, "the front matter")
    return front, body, text.count("\n", 0, closing.end()) + 2


def _check_names(declared: tuple[Parameter, ...], body: str, path: str, first_line: int) -> None:
    names = [parameter.name for parameter in declared]
    problems: list[Problem] = []
    for match in _PLAIN_NAME.finditer(body):
        if match.group(1) not in names:
            line = first_line + body.count("\n", 0, match.start())
            column = match.start() - body.rfind("\n", 0, match.start())
            problems.append(Problem.at(path, (line, column), unknown(match.group(1), names, "parameter")))
    if problems:
        raise DefinitionError(problems)
