"""Agents by name: `.swissarmyhammer/agents/<name>.yaml` of the project or the person, else the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import ValidationError

from sidecar.catalog import naming, yaml_format
from sidecar.catalog.naming import BUILTIN_AGENTS
from sidecar.errors import DefinitionError
from sidecar.model import duration
from sidecar.model.agent import ADAPTER_NAMES, PROMPT, AgentDefinition, Limits
from sidecar.model.parameters import Parameter, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from sidecar.catalog.naming import Source
    from sidecar.catalog.yaml_format import Document
    from sidecar.errors import Problem


_COMMAND = Parameter(name="command", description="The argv to run.", type="array", required=False)

BUILTIN: Mapping[str, AgentDefinition] = {
    "claude": AgentDefinition(adapter="claude", description=BUILTIN_AGENTS["claude"]),
    "codex": AgentDefinition(adapter="codex", description=BUILTIN_AGENTS["codex"]),
    "gemini": AgentDefinition(adapter="gemini", description=BUILTIN_AGENTS["gemini"]),
    "command": AgentDefinition(
        adapter="command",
        description=BUILTIN_AGENTS["command"],
        parameters=(PROMPT, _COMMAND),
        command="{{ command }}",
    ),
}


@dataclass(frozen=True, slots=True)
class CatalogAgent:
    """A definition with its name and where it came from."""

    name: str
    source: Source
    path: str | None
    definition: AgentDefinition


def find(root: str, name: str) -> CatalogAgent:
    """The agent of that name. A broken file is an error, never a reason to take the next one of that name."""
    return _agent(name, *naming.find(root, "agents", name))


def listing(root: str) -> tuple[list[CatalogAgent], list[str]]:
    """All agents of a project, by name, and what is wrong with the files that define none."""
    agents: list[CatalogAgent] = []
    problems: list[str] = []
    for name, (source, path) in naming.listed(root, "agents").items():
        try:
            agents.append(_agent(name, source, path))
        except DefinitionError as error:
            problems.extend(error.problems)
    return agents, problems


def doubts(agent: CatalogAgent) -> list[Problem]:
    """Durations in the agent's file that say milliseconds where seconds were probably meant."""
    if agent.path is None:
        return []
    document = yaml_format.load(agent.path)
    limits = document.value.get("limits", {})
    found = {key: duration.doubt(limits.get(key)) for key, _ in duration.keys(Limits)}
    return [document.problem(("limits", key), f"`{key}`: {doubt}") for key, doubt in found.items() if doubt is not None]


def parse(document: Document) -> AgentDefinition:
    """The definition in a file; DefinitionError has every problem, in the order of the file."""
    if not isinstance(document.value, dict):
        raise DefinitionError([document.problem((), "an agent definition is a mapping, `name: value` on each line")])
    try:
        return AgentDefinition.model_validate(document.value)
    except ValidationError as error:
        details = sorted(error.errors(), key=lambda detail: document.place(detail["loc"])[0])
        raise DefinitionError([document.problem(detail["loc"], _message(detail)) for detail in details]) from None


def _agent(name: str, source: Source, path: str | None) -> CatalogAgent:
    definition = BUILTIN[name] if path is None else parse(yaml_format.load(path))
    return CatalogAgent(name, source, path, definition)


def _message(detail: ErrorDetails) -> str:
    location = [str(part) for part in detail["loc"] if part != "[key]"]
    name = ".".join(location)
    match detail["type"]:
        case "extra_forbidden":
            return unknown(location[-1], _known_keys(location[:-1]), "key")
        case "missing":
            return f"{name} is missing" + (f": one of {', '.join(ADAPTER_NAMES)}" if name == "adapter" else "")
        case "literal_error":
            near = get_close_matches(str(detail["input"]), ADAPTER_NAMES, 1) if name == "adapter" else []
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{name}: {detail['input']!r} is not {detail['ctx']['expected']}{hint}"
        case "string_type":
            return f"{name} has to be text; put it in quotes"
        case "value_error":
            return f"{name}: {detail['ctx']['error']}"
        case _:
            return f"{name}: {detail['msg']}"


def _known_keys(location: Iterable[str]) -> list[str]:
    """The keys that a mapping at a location may have."""
    models: dict[str, type[BaseModel]] = {"limits": Limits, "parameters": Parameter}
    model = next((models[part] for part in location if part in models), AgentDefinition)
    return [field.alias or name for name, field in model.model_fields.items()]
