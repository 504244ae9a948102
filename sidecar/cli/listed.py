"""Lists of workflows, agents and prompts: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import argparse
import json
import os
import sys

from sidecar import layout
from sidecar.text import printable, wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sidecar.catalog.agents import CatalogAgent
    from sidecar.catalog.prompts import Prompt

OK, FAILED = 0, 2
_VERBOSE = ("version", "path")  # only for those who ask for more
_COLUMNS = ("source", "adapter")


def parser(command: str, things: str) -> argparse.ArgumentParser:
    """The options of `sidecar flow list` and its like."""
    made = argparse.ArgumentParser(prog=f"sidecar {command} list", description=f"List the {things} there are.")
    made.add_argument("--format", choices=("table", "json", "yaml"), default="table", help="default: table")
    made.add_argument("-v", "--verbose", action="store_true", help="with parameters, and the file")
    made.add_argument("--source", metavar="SOURCE", help="only those of: project (local), global (user), builtin")
    return made


def workflows(arguments: list[str], project: str | None) -> int:
    """`sidecar flow list`; files that define none are reported, and hide no other."""
    options = parser("flow", "workflows").parse_args(arguments)
    from sidecar.catalog import listing  # noqa: PLC0415 - yaml, only for those who need it

    rows, problems = listing.workflows(layout.find_root(project, os.environ), options.source)
    return tell("workflows", rows, problems, options)


def agents(arguments: list[str], project: str | None) -> int:
    """`sidecar agent list`."""
    from sidecar.catalog import agents as found  # noqa: PLC0415 - pydantic, too

    return catalog("agent", arguments, project, found.listing, _agent_row)


def prompts(arguments: list[str], project: str | None) -> int:
    """`sidecar prompt list`."""
    from sidecar.catalog import prompts as found  # noqa: PLC0415

    return catalog("prompt", arguments, project, found.listing, _prompt_row)


def _agent_row(agent: CatalogAgent) -> dict[str, Any]:
    from sidecar.catalog import listing  # noqa: PLC0415

    definition = agent.definition
    return {
        "name": agent.name,
        "description": definition.description,
        "source": agent.source,
        "adapter": definition.adapter,
        "parameters": [listing.described(one) for one in definition.declared],
        "path": agent.path,
    }


def _prompt_row(prompt: Prompt) -> dict[str, Any]:
    from sidecar.catalog import listing  # noqa: PLC0415

    return {
        "name": prompt.name,
        "title": prompt.title,
        "description": prompt.description,
        "source": prompt.source,
        "parameters": [listing.described(one) for one in prompt.parameters],
        "path": prompt.loaded_from,
    }


def catalog(
    command: str,
    arguments: list[str],
    project: str | None,
    find: Callable[[str], tuple[list[Any], list[str]]],
    row: Callable[[Any], dict[str, Any]],
) -> int:
    """`sidecar COMMAND list` of what a catalog finds: things that have a source, and what is wrong with others."""
    things = f"{command}s"
    options = parser(command, things).parse_args(arguments)
    from sidecar.catalog.naming import source_named  # noqa: PLC0415

    wanted = source_named(options.source) if options.source else None
    found, problems = find(layout.find_root(project, os.environ))
    return tell(things, [row(one) for one in found if wanted in (None, one.source)], problems, options)


def tell(things: str, rows: list[dict[str, Any]], problems: list[str], options: argparse.Namespace) -> int:
    """Print them; broken files are told on stderr, and hide no other. The exit code."""
    if not options.verbose:
        rows = [{name: value for name, value in row.items() if name not in _VERBOSE} for row in rows]
    if options.format == "json":
        print(json.dumps({things: rows}, indent=1, ensure_ascii=False))
    elif options.format == "yaml":
        import yaml  # noqa: PLC0415

        print(yaml.safe_dump({things: rows}, sort_keys=False, allow_unicode=True), end="")
    else:
        _print_table(things, rows, verbose=options.verbose)
    for problem in problems:
        print(problem, file=sys.stderr)
    return FAILED if problems else OK


def parameter_line(parameter: dict[str, Any]) -> str:
    """One parameter in words."""
    facts = [parameter["type"]]
    facts += ["required"] if parameter["required"] and "default" not in parameter else []
    facts += [f"default {json.dumps(parameter['default'], ensure_ascii=False)}"] if "default" in parameter else []
    facts += [f"one of {', '.join(map(str, parameter['choices']))}"] if "choices" in parameter else []
    description = f"  {parameter['description']}" if parameter["description"] else ""
    return f"{parameter['name']} ({', '.join(facts)}){description}"


def _print_table(things: str, rows: list[dict[str, Any]], *, verbose: bool) -> None:
    if not rows:
        print(f"no {things}; they are files in .swissarmyhammer/{things}/")
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        columns = " ".join(f"{row[name]:<8}" for name in _COLUMNS if name in row)
        line = printable(f"{row['name']:<{width}}  {columns} {row['description']}").rstrip()
        print(wrapped(line, width + len(columns) + 3))
        for parameter in row["parameters"] if verbose else ():
            print(wrapped(printable(f"{'':<{width}}  {parameter_line(parameter)}").rstrip(), width + 4))
