"""Writes docs/reference.md: every key of workflow files and agent files, from the models that check these files.

    .venv/bin/python scripts/reference.py [--check]

The examples are the files in docs/examples. `--check` writes nothing and fails when the page is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from sidecar.model import parameters, steps, workflow
from sidecar.model.agent import AgentDefinition, Limits
from sidecar.model.language import Role
from sidecar.model.steps import STEP_CLASSES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"
EXAMPLES = ROOT / "docs" / "examples"

INTRODUCTION = """\
# Reference

Every key of a workflow file and of an agent file. This page is generated from the models that check these files
(`scripts/reference.py`); `sidecar schema` prints the same as a JSON Schema for editors.
[Workflow language](language.md) explains how the parts work together.

**Values.** The column *value* uses these words:

| word | meaning |
| --- | --- |
| duration | `500ms`, `30s`, `5m`, `2h`, `1d`, or several, as in `1h30m`. A number without a unit is milliseconds. |
| count | a whole number. |
| condition | a JavaScript expression, with or without `{{ }}`; its truth counts. Or `true`, `false`. |
| path | a field to write, below `raw.` or `state.`: `raw.files`, `raw.by[{{ item }}]`. A `{{ }}` in it is one key. |
| JavaScript | an expression without `{{ }}`, an object literal, or a function body with `return`. |
| text | any text. With *template* it may contain `{{ }}`. |
| any | any YAML value; every text in it may contain `{{ }}`. |
| name | letters, digits, `-`, `_`, `:`. |

*Template*: `{{ expression }}` is evaluated when the step starts. *Required*: the key has no default.
"""

# The parts of a file: heading, model, introduction.
PARTS: list[tuple[str, type[BaseModel], str]] = [
    ("Workflow file", workflow.Workflow, "The top of the file. The same keys may stand below a key `workflow`."),
    ("`inputs.NAME`", workflow.Input, "One entry for each input."),
    ("`default_state`", workflow.DefaultState, "Evaluated once, when the run starts; `inputs` is in scope."),
    ("`state_schema`", workflow.StateSchema, "Types: `string`, `number`, `integer`, `boolean`, `array`, `object`."),
    ("`state_schema.computed.NAME`", workflow.Computed, ""),
    ("`sub_agent_tasks.NAME`", workflow.SubAgentTask, ""),
    ("`sub_agent_tasks.NAME.error_handling`", workflow.TaskErrors, ""),
    ("`error_handling`", workflow.ErrorHandling, ""),
    ("`error_handling.error_collection`", workflow.ErrorCollection, ""),
    ("`on_resume`", workflow.OnResume, ""),
    ("`limits`", workflow.RunLimits, ""),
]
# What stands inside a step, below its own table: model, key, introduction.
INSIDE: dict[str, list[tuple[str, type[BaseModel]]]] = {
    "mcp_call": [("mcp", steps.McpTool)],
    "state_update": [("updates[]", steps.FullUpdate)],
    "user_input": [("validation", steps.InputValidation)],
    "parallel_foreach": [("on_sub_agent_error", steps.SubAgentErrors)],
}
SHARED: list[tuple[str, type[steps.StepBase], str]] = [
    ("Keys of every step", steps.StepBase, ""),
    (
        "Keys of steps that can fail",
        steps.Fallible,
        "Every step but `conditional`, `while`, `foreach`, `break`, `continue` and `exit` has them.",
    ),
    ("Keys of steps with a result", steps.Working, "`timeout` and `state_update` of {working}."),
    ("Keys of steps that start a process", steps.RunsSomewhere, "{running} have them."),
]

ROLE_WORDS = {
    Role.CONDITION: "condition",
    Role.CHECK: "JavaScript",
    Role.TRANSFORM: "JavaScript",
    Role.PATH: "path",
    Role.VALUE: "any",
    Role.PATTERN: "regular expression",
    Role.SOURCE: "path, or list of paths",
    Role.ITEMS: "list, or template",
    Role.COMMAND: "text or list of texts, template",
}
TEMPLATES = {Role.MESSAGE, Role.PROMPT, Role.TEMPLATE}


def page() -> str:
    return "\n".join([INTRODUCTION, *_workflow_parts(), *_steps(), *_agent_file()]).rstrip() + "\n"


def _workflow_parts() -> Iterator[str]:
    for heading, model, introduction in PARTS:
        yield from _section(f"## {heading}", model, introduction)


def _steps() -> Iterator[str]:
    types = ", ".join(f"[`{name}`](#{name})" for name in STEP_CLASSES)
    yield f"## Steps\n\nA step has a `type`: {types}.\n"
    working = _types_with(steps.Working)
    running = _types_with(steps.RunsSomewhere)
    for heading, model, introduction in SHARED:
        text = introduction.format(working=working, running=running)
        yield from _section(f"### {heading}", model, text)
    yield from _section("### `state_update` and `error_state_update` of a step", steps.Update, "")
    for name, model in STEP_CLASSES.items():
        yield from _section(f"### {name}", model, _docstring(model) + _shared_keys(model))
        for key, inside in INSIDE.get(name, []):
            yield from _section(f"`{key}`:", inside, "")
        yield f"```yaml\n{(EXAMPLES / f'{name}.yaml').read_text().rstrip()}\n```\n"


def _agent_file() -> Iterator[str]:
    yield from _section(
        "## Agent file", AgentDefinition, "`.swissarmyhammer/agents/NAME.yaml`: see [Agents](agents.md)."
    )
    yield from _section("### `parameters[]` of an agent", parameters.Parameter, "")
    yield from _section("### `limits` of an agent", Limits, "The agent is ended when it reaches one of them.")


def _types_with(base: type[steps.StepBase]) -> str:
    return ", ".join(f"`{name}`" for name, model in STEP_CLASSES.items() if issubclass(model, base))


def _shared_keys(model: type[steps.StepBase]) -> str:
    """Which of the shared tables hold for a step, most general last."""
    found = next(heading for heading, base, _ in reversed(SHARED) if issubclass(model, base))
    return f" Also: {found[0].lower()}{found[1:]}." if model not in (steps.Break, steps.Continue) else ""


def _docstring(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _section(heading: str, model: type[BaseModel], introduction: str) -> Iterator[str]:
    yield heading + "\n"
    if introduction:
        yield introduction + "\n"
    shared = [base for _, base, _ in SHARED if issubclass(model, base) and model is not base]
    without = {"type", *(name for base in shared for name in base.model_fields)} if shared else set()
    rows = [_row(model, name) for name in model.model_fields if name not in without]
    if rows:
        yield "\n".join(["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _row(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    key = field.alias or name
    schema = model.model_json_schema(by_alias=True)
    properties = schema.get("properties") or schema["$defs"][model.__name__]["properties"]
    entry = properties[key]
    role = next((one for one in field.metadata if isinstance(one, Role)), None)
    default = "required" if field.is_required() else _default(entry)
    assert field.description, f"{model.__name__}.{name} has no description"
    cells = [f"`{key}`", _value(name, entry, role, schema), default, field.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(entry: dict[str, Any]) -> str:
    default = entry.get("default")
    if default is None or default in ("", [], {}) or isinstance(default, dict | list):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _value(name: str, entry: dict[str, Any], role: Role | None, schema: dict[str, Any]) -> str:
    if role in ROLE_WORDS and not (role is Role.VALUE and entry.get("type") == "object"):
        return ROLE_WORDS[role]
    word = "duration" if name.endswith("_s") else _type(entry, schema)
    return f"{word}, template" if role in TEMPLATES else word


def _type(entry: dict[str, Any], schema: dict[str, Any]) -> str:
    """A node of a JSON Schema in the words of the introduction."""
    if "$ref" in entry:
        entry = {**schema["$defs"][entry["$ref"].rpartition("/")[2]], "$ref": entry["$ref"]}
    kinds = [_type(one, schema) for one in entry.get("anyOf", []) if one != {"type": "null"}]
    if {"count", "text"} <= set(kinds):
        return "count"
    if kinds:
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in entry:
        return ", ".join(f"`{one}`" for one in entry["enum"])
    if "discriminator" in entry:
        return "step"
    if entry.get("type") == "array":
        items = _type(entry["items"], schema) if entry.get("items") else "any"
        return {"step": "list of steps", "any": "list"}.get(items, f"list of {items}s")
    if entry.get("type") == "object":
        return "object"
    words = {"string": "text", "integer": "count", "number": "number", "boolean": "`true`, `false`"}
    return words.get(entry.get("type", ""), "any")


def main() -> None:
    text = page()
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != text:
            sys.exit("docs/reference.md is not up to date: run .venv/bin/python scripts/reference.py")
        return
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
