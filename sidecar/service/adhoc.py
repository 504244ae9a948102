"""An agent or a prompt as a run of its own: a workflow of one step, made on the spot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from sidecar.catalog import definition as definitions
from sidecar.catalog import yaml_format
from sidecar.catalog.workflows import Definition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.model.parameters import Parameter

RESULT = "answer"  # the field of the state that has what the agent said


def of_agent(name: str, parameters: Iterable[Parameter], directory: str | None = None) -> Definition:
    """One turn of an agent, with its parameters as inputs; `directory`: where it works inside the project."""
    declared = tuple(parameters)
    step: dict[str, Any] = {"id": "agent", "type": "agent", "agent": name, "prompt": "{{ inputs.prompt ?? '' }}"}
    if directory is not None:
        step["working_dir"] = f"{{{{ {json.dumps(directory)} }}}}"  # a name may look like a template
    others = {one.name: f"{{{{ inputs.{one.name} }}}}" for one in declared if one.name != "prompt"}
    return _workflow(f"agent:{name}", f"One turn of the agent {name}.", declared, step | {"parameters": others})


def of_prompt(name: str, parameters: Iterable[Parameter], agent: str | None = None) -> Definition:
    """A prompt by its name, given to an agent."""
    declared = tuple(parameters)
    given = {one.name: f"{{{{ inputs.{one.name} }}}}" for one in declared}
    step = {"id": "agent", "type": "agent", "prompt_name": name, "parameters": given}
    if agent:
        step["agent"] = agent
    return _workflow(f"prompt:{name}", f"The prompt {name}.", declared, step)


def subject(definition: Definition) -> tuple[str, str] | None:
    """`agent` or `prompt`, and its name, where a definition was made of one here."""
    if definition.loaded_from != f"<{definition.name}>":
        return None
    kind, _, name = definition.name.partition(":")
    return kind, name


def _workflow(name: str, description: str, parameters: tuple[Parameter, ...], step: dict[str, Any]) -> Definition:
    inputs = {one.name: one.model_dump(exclude={"name"}, exclude_unset=True, mode="json") for one in parameters}
    content = {
        "description": description,
        "inputs": inputs,
        "state_schema": {"raw": {RESULT: "string"}},
        "steps": [step | {"state_update": {"path": f"raw.{RESULT}"}}],
    }
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    document = yaml_format.parse(text, f"<{name}>")
    return Definition(name, "builtin", document.path, definitions.parse(document), document, {})
