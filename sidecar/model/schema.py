"""The JSON Schema of the workflow language, for editors; made from the models, so that it cannot say anything else."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from sidecar.model.steps_control import STEP_CLASSES
from sidecar.model.workflow import Workflow

DIALECT = GenerateJsonSchema.schema_dialect
_REFERENCE = "#/$defs/{model}"


def json_schema() -> dict[str, Any]:
    """A definition, or one below the single key `workflow`."""
    schema = Workflow.model_json_schema(by_alias=True, ref_template=_REFERENCE)
    definitions = schema.pop("$defs")
    definitions["Workflow"] = schema
    definitions = _tidied(definitions)
    definitions["Step"] = _step(definitions)
    reference = {"$ref": _REFERENCE.format(model="Workflow")}
    wrapped = {
        "type": "object",
        "properties": {"workflow": reference},
        "required": ["workflow"],
        "additionalProperties": False,
    }
    return {
        "$schema": DIALECT,
        "title": "sidecar workflow",
        "description": "A workflow of sidecar: what to do, over which state, and what to do when it fails.",
        # `if` and not `anyOf`: a checker then tells what is wrong with the one that was meant.
        "if": {"type": "object", "required": ["workflow"]},
        "then": wrapped,
        "else": reference,
        "$defs": definitions,
    }


def _step(definitions: dict[str, Any]) -> dict[str, Any]:
    """Any step, by its `type`: a checker looks at that first, and then speaks of that one step only."""
    references = {name: {"$ref": _REFERENCE.format(model=cls.__name__)} for name, cls in STEP_CLASSES.items()}
    for name, cls in STEP_CLASSES.items():
        definitions[cls.__name__]["title"] = name
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"description": "What the step does.", "enum": list(references)}},
        "allOf": [
            {"if": {"properties": {"type": {"const": name}}, "required": ["type"]}, "then": reference}
            for name, reference in references.items()
        ],
    }


def _tidied(node: Any) -> Any:
    """What pydantic makes, as people and checkers want it."""
    if isinstance(node, list):
        return [_tidied(child) for child in node]
    if not isinstance(node, dict):
        return node
    if "discriminator" in node:  # OpenAPI's word, and only steps have it
        return {"$ref": _REFERENCE.format(model="Step")}
    tidy = {key: _tidied(child) for key, child in node.items()}
    if isinstance(tidy.get("properties"), dict):  # titles that only repeat the key
        tidy["properties"] = {key: _untitled(child) for key, child in tidy["properties"].items()}
    if isinstance(tidy.get("patternProperties"), dict):
        tidy.setdefault("additionalProperties", False)  # a name that does not fit the pattern is wrong
    alternatives = tidy.get("anyOf")
    if alternatives and {"type": "null"} in alternatives:  # a key without a value is refused
        rest = [child for child in alternatives if child != {"type": "null"}]
        tidy = {key: child for key, child in tidy.items() if key != "anyOf"}
        tidy |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    if tidy.get("default", 0) is None:
        del tidy["default"]
    return tidy


def _untitled(node: Any) -> Any:
    return {key: child for key, child in node.items() if key != "title"} if isinstance(node, dict) else node
