"""Lists workflows by the headings of their files: description, version and parameters, for the command line and MCP.

The models of a whole definition take longer to import than a hundred files take to read, so they are not used here: the
YAML, the heading and the types of the steps at the top are checked, and the rest is left to `sidecar validate` and to
the run. A file that does not pass is read as a whole, which decides what is wrong with it, if anything.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import yaml

from sidecar.catalog import naming, yaml_format
from sidecar.errors import DefinitionError, Problem
from sidecar.model.events import STEP_TYPES

if TYPE_CHECKING:
    from sidecar.model.parameters import Parameter

Row = dict[str, Any]


def workflows(root: str, source: str | None = None) -> tuple[list[Row], list[str]]:
    """Every workflow of a project, by name, from one source if one is given; and the first problem of each file that
    defines none."""
    wanted = None if source is None else naming.source_named(source)
    found: list[Row] = []
    problems: list[str] = []
    for name, (where, path) in naming.known(root, "workflows", problems).items():
        if path is None or wanted not in (None, where):
            continue
        why = naming.stray(root, "workflows", where, path)
        result = _current_heading(path) if why is None else [Problem.at(path, (1, 1), why)]
        if isinstance(result, dict):
            found.append({"name": name, "description": "", "source": where, **result, "path": path})
        else:
            more = f" (and {len(result) - 1} more: sidecar validate {name})" if len(result) > 1 else ""
            problems.append(result[0] + more)
    return found, problems


def described(parameter: Parameter) -> Row:
    """One parameter as programs want it."""
    row: Row = {"name": parameter.name, "type": parameter.type, "required": parameter.is_required}
    row["description"] = parameter.description
    if parameter.default is not None:
        row["default"] = parameter.default
    if parameter.choices is not None:
        row["choices"] = list(parameter.choices)
    return row


def _current_heading(path: str) -> Row | list[Problem]:
    try:
        status = os.stat(path)
    except OSError as error:  # removed since the directory was listed, or a link to nowhere
        return [Problem.at(path, (1, 1), f"cannot be read: {error.strerror or error}")]
    return heading(path, status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=4096)
def heading(path: str, *_identity: int) -> Row | list[Problem]:
    """The heading of a file, or its problems. Cached until the file changes: MCP clients ask for lists often."""
    try:
        return _checked_heading(path) or whole_heading(path)
    except DefinitionError as error:
        return list(error.problems)


def whole_heading(path: str) -> Row:
    """The heading by the reader of whole definitions; DefinitionError has every problem."""
    from sidecar.catalog import definition  # noqa: PLC0415 - imports the models

    workflow = definition.parse(yaml_format.load(path))
    parameters = [described(one) for one in workflow.parameters]
    return {"description": workflow.description, "parameters": parameters, "version": workflow.version}


def _checked_heading(path: str) -> Row | None:
    """The heading, or None where the file is not as it usually is."""
    try:
        loader, root = yaml_format.load_nodes(path)
        entries = _entries(root)
        if list(entries) == ["workflow"]:
            entries = _entries(entries["workflow"])
        if not ("steps" in entries or "sub_agent_tasks" in entries) or not _has_known_steps(entries.get("steps")):
            return None
        keys = ("name", "version", "description", "inputs")
        values = {key: loader.construct_document(entries[key]) for key in keys if key in entries}
    except (yaml.YAMLError, DefinitionError, RecursionError, *yaml_format.CONSTRUCTOR_ERRORS):
        return None
    name, version, description = (values.get(key, "") for key in keys[:3])
    texts = isinstance(name, str) and isinstance(version, str) and isinstance(description, str)
    inputs = values.get("inputs", {})
    problems: list[tuple[yaml_format.Location, str]] = []
    yaml_format.as_json(values, problems)
    if not texts or not isinstance(inputs, dict) or problems:
        return None
    parameters = [_parameter(name, given) for name, given in inputs.items()]
    if None in parameters or ("name" in values and not naming.is_name(name)):
        return None
    return {"description": description, "parameters": parameters, "version": version}


def _entries(node: yaml.Node | None) -> dict[str, yaml.Node]:
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _has_known_steps(node: yaml.Node | None) -> bool:
    steps = node.value if isinstance(node, yaml.SequenceNode) else [node] if node else []
    types = [_entries(step).get("type") for step in steps]
    return all(isinstance(one, yaml.ScalarNode) and one.value in STEP_TYPES for one in types)


def _parameter(name: str, given: object) -> Row | None:
    if not isinstance(given, dict) or None in given.values():  # a key without a value: most likely forgotten
        return None
    default, choices = given.get("default"), given.get("choices")
    row = {
        "name": name,
        "type": given.get("type", "string"),
        "required": given.get("required", default is None),
        "description": given.get("description", ""),
    }
    is_usual = (
        isinstance(row["type"], str)
        and isinstance(row["required"], bool)
        and isinstance(row["description"], str)
        and isinstance(choices, list | None)
    )
    return row | {key: given[key] for key in ("default", "choices") if key in given} if is_usual else None
