"""Lists of workflows, agents and prompts, and the help of one: `flow list`, `flow run NAME --help` and their like."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.catalog import listing
from sidecar.catalog.naming import source_named
from sidecar.cli.options import parser
from sidecar.cli.parameters import is_positional, usage
from sidecar.text import one_line, printable, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.catalog.agents import CatalogAgent
    from sidecar.catalog.prompts import Prompt
    from sidecar.catalog.workflows import Definition
    from sidecar.model.parameters import Parameter

OK, FAILED = 0, 2
_VERBOSE = ("version", "path")  # only with --verbose
_COLUMNS = ("source", "adapter")
_EXAMPLES = {"string": "VALUE", "number": "2.5", "integer": "3", "boolean": "true", "array": "'[]'", "object": "'{}'"}
_LONGEST = 110


def list_definitions(command: str, arguments: list[str], project: str | None) -> int:
    """`flow list`, `agent list` and `prompt list`. Files with errors are reported on stderr and hide no other."""
    options = parser(f"{command} list").parse_args(arguments)
    things = "workflows" if command == "flow" else f"{command}s"
    rows, problems = _rows(things, layout.find_root(project, os.environ), options.source)
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


def _rows(things: str, root: str, source: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    if things == "workflows":
        return listing.workflows(root, source)
    wanted = source_named(source) if source else None
    found: Sequence[Any]
    if things == "agents":
        from sidecar.catalog import agents  # noqa: PLC0415 - pydantic

        found, problems = agents.listing(root)
        return [_agent_row(one) for one in found if wanted in (None, one.source)], problems
    from sidecar.catalog import prompts  # noqa: PLC0415

    found, problems = prompts.listing(root)
    return [_prompt_row(one) for one in found if wanted in (None, one.source)], problems


def _agent_row(agent: CatalogAgent) -> dict[str, Any]:
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
    return {
        "name": prompt.name,
        "title": prompt.title,
        "description": prompt.description,
        "source": prompt.source,
        "parameters": [listing.described(one) for one in prompt.parameters],
        "path": prompt.loaded_from,
    }


def _parameter_line(parameter: dict[str, Any]) -> str:
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
            print(wrapped(printable(f"{'':<{width}}  {_parameter_line(parameter)}").rstrip(), width + 4))


# --- the help of one


def help_of_workflow(definition: Definition) -> list[str]:
    """`flow run NAME --help`, with the steps."""
    workflow = definition.workflow
    steps = ["", "steps:"]
    for step in workflow.steps or ():
        about = f"  {step.description}" if step.description else ""
        steps.append("  " + one_line(f"{step.id}: {step.type}{about}", _LONGEST))
    place = f"It is {definition.source}: {definition.loaded_from}"
    return _lines(f"flow run {definition.name}", workflow.description, workflow.parameters, steps, place)


def help_of_agent(agent: CatalogAgent) -> list[str]:
    """`agent run NAME --help`, with the adapter."""
    definition = agent.definition
    place = f"It is {agent.source}" + (f": {agent.path}" if agent.path else "")
    adapter = ["", f"adapter: {definition.adapter}"]
    return _lines(f"agent run {agent.name}", definition.description, definition.declared, adapter, place)


def help_of_prompt(prompt: Prompt) -> list[str]:
    """`prompt show` prints the text."""
    place = f"It is {prompt.source}: {prompt.loaded_from}"
    description = prompt.description or prompt.title
    return _lines(f"prompt run {prompt.name}", description, prompt.parameters, [], place)


def _lines(command: str, description: str, parameters: Sequence[Parameter], more: list[str], place: str) -> list[str]:
    full = f"sidecar {command}"
    lines = [f"usage: {usage(full, parameters)} [OPTION…]"]
    if description:
        lines += ["", one_line(description, 1000)]
    if parameters:
        lines += ["", "parameters:"]
        lines += [f"  {one_line(_parameter_line(listing.described(one)), 300)}" for one in parameters]
    example = " ".join([full, *(_example(one) for one in parameters if is_positional(one))])
    lines += [*more, "", f"example: {example}", "", place]
    noun, verb, _ = command.split(" ", 2)
    return [*lines, f"`sidecar {noun} {verb} --help` shows the options that all of them have."]


def _example(parameter: Parameter) -> str:
    if parameter.choices:
        first = parameter.choices[0]
        return first if isinstance(first, str) else json.dumps(first)
    return _EXAMPLES[parameter.type]
