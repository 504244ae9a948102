"""Agents by name: `.swissarmyhammer/agents/<name>.yaml` of the project or the person, else the built-in ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.catalog import naming, yaml_format
from sidecar.catalog.definition import parse_part
from sidecar.catalog.naming import BUILTIN_AGENTS
from sidecar.errors import DefinitionError
from sidecar.model import duration
from sidecar.model.agent import PROMPT, AgentDefinition, Limits
from sidecar.model.parameters import Parameter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.catalog.naming import Source
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


def _agent(name: str, source: Source, path: str | None) -> CatalogAgent:
    if path is None:
        return CatalogAgent(name, source, path, BUILTIN[name])
    definition = parse_part(yaml_format.load(path), AgentDefinition, "an agent definition")
    return CatalogAgent(name, source, path, definition)
