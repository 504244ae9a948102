"""Lists of workflows, agents and prompts: as results of tools, and as the names that tools can be called with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import yaml

from sidecar.catalog import agents, listing, prompts, workflows

if TYPE_CHECKING:
    from collections.abc import Iterable


Json = dict[str, Any]
Kind = Literal["flow", "agent", "prompt"]
LIST = "list"
KEYS: dict[Kind, str] = {"flow": "workflows", "agent": "agents", "prompt": "prompts"}


def names(root: str, kind: Kind) -> list[str]:
    """What can be called: every name there is, as `called` writes it."""
    return [called(row["name"]) for row in rows(root, kind, verbose=False)[0]]


def called(name: str) -> str:
    """How a definition is called: `list` has another meaning, so one of that name gets an underscore."""
    return f"_{name}" if name == LIST else name


def meant(given: str) -> str:
    """The definition's own name."""
    return LIST if given == f"_{LIST}" else given


def check_name(root: str, kind: Kind, name: str) -> None:
    """NotFound with the nearest names, or what is wrong with the file of that name."""
    {"flow": workflows.find, "agent": agents.find, "prompt": prompts.find}[kind](root, name)


def listed(root: str, kind: Kind, *, verbose: bool) -> Json:
    """The result of a list."""
    found, problems = rows(root, kind, verbose=verbose)
    return {KEYS[kind]: found, **({"problems": problems} if problems else {})}


def rendered(result: Json, kind: Kind, form: str) -> str:
    """The list as text, in the form that was asked for."""
    if form == "yaml":
        return yaml.safe_dump(result, sort_keys=False, allow_unicode=True)
    if form == "table":
        return _table(result[KEYS[kind]])
    return json.dumps(result, ensure_ascii=False)


def rows(root: str, kind: Kind, *, verbose: bool) -> tuple[list[Json], list[str]]:
    """Every definition, and what is wrong with files that define none."""
    if kind == "flow":
        flows, problems = listing.workflows(root)
        return [
            {
                **{key: row[key] for key in ("name", "description", "source")},
                "parameters": _parameters(row["parameters"], verbose),
                **({"version": row["version"], "path": row["path"]} if verbose else {}),
            }
            for row in flows
        ], problems
    if kind == "agent":
        known, problems = agents.listing(root)
        return [
            {
                "name": one.name,
                "description": one.definition.description,
                "source": one.source,
                "adapter": one.definition.adapter,
                "parameters": _parameters(map(listing.described, one.definition.declared), verbose),
            }
            for one in known
        ], problems
    stored, problems = prompts.listing(root)
    return [
        {
            "name": one.name,
            "description": one.description,
            "source": one.source,
            "parameters": _parameters(map(listing.described, one.parameters), verbose),
            **({"title": one.title, "path": one.loaded_from} if verbose else {}),
        }
        for one in stored
    ], problems


def _parameters(described: Iterable[Json], verbose: bool) -> list[Json]:
    return [
        {
            "name": one["name"],
            "type": one["type"],
            "description": one["description"],
            "required": one["required"],
            **({"default": one.get("default"), "choices": one.get("choices")} if verbose else {}),
        }
        for one in described
    ]


def _table(found: list[Json]) -> str:
    if not found:
        return "none\n"
    widths = [max(len(row[key]) for row in found) for key in ("name", "source")]
    lines = (f"{row['name']:<{widths[0]}}  {row['source']:<{widths[1]}}  {row['description']}" for row in found)
    return "".join(f"{line.rstrip()}\n" for line in lines)
