"""`sidecar flow run NAME --help` and its like: what one workflow, agent or prompt is for, asks for, and does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sidecar.catalog import listing
from sidecar.cli import listed
from sidecar.cli.parameters import is_positional, usage
from sidecar.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.catalog.agents import CatalogAgent
    from sidecar.catalog.prompts import Prompt
    from sidecar.catalog.workflows import Definition
    from sidecar.model.parameters import Parameter

_EXAMPLES = {"string": "VALUE", "number": "2.5", "integer": "3", "boolean": "true", "array": "'[]'", "object": "'{}'"}
_LONGEST = 110


def of_workflow(definition: Definition) -> list[str]:
    """With its steps: what progress notifications call states."""
    workflow = definition.workflow
    steps = ["", "steps:"]
    for step in workflow.steps or ():
        about = f"  {step.description}" if step.description else ""
        steps.append("  " + one_line(f"{step.id}: {step.type}{about}", _LONGEST))
    place = f"It is {definition.source}: {definition.loaded_from}"
    return _lines(f"flow run {definition.name}", workflow.description, workflow.parameters, steps, place)


def of_agent(agent: CatalogAgent) -> list[str]:
    """With the adapter that speaks its language."""
    definition = agent.definition
    place = f"It is {agent.source}" + (f": {agent.path}" if agent.path else "")
    adapter = ["", f"adapter: {definition.adapter}"]
    return _lines(f"agent run {agent.name}", definition.description, definition.declared, adapter, place)


def of_prompt(prompt: Prompt) -> list[str]:
    """`prompt show` tells the text itself."""
    place = f"It is {prompt.source}: {prompt.loaded_from}"
    description = prompt.description or prompt.title
    return _lines(f"prompt run {prompt.name}", description, prompt.parameters, [], place)


def _lines(command: str, description: str, parameters: Sequence[Parameter], more: list[str], place: str) -> list[str]:
    full = f"sidecar {command}"
    told = [f"usage: {usage(full, parameters)} [OPTION…]"]
    if description:
        told += ["", one_line(description, 1000)]
    if parameters:
        told += ["", "parameters:"]
        told += [f"  {one_line(listed.parameter_line(listing.described(one)), 300)}" for one in parameters]
    example = " ".join([full, *(_example(one) for one in parameters if is_positional(one))])
    told += [*more, "", f"example: {example}", "", place]
    noun, verb, _ = command.split(" ", 2)
    return [*told, f"`sidecar {noun} {verb} --help` tells the options that all of them have."]


def _example(parameter: Parameter) -> str:
    if parameter.choices:
        first = parameter.choices[0]
        return first if isinstance(first, str) else json.dumps(first)
    return _EXAMPLES[parameter.type]
