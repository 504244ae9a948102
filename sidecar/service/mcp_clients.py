"""Registers sidecar with MCP clients: which file each client reads, and what is added there."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sidecar.agents.adapters.adapter import MCP_SERVER
from sidecar.catalog import naming
from sidecar.errors import ConfigError
from sidecar.service.file_change import FileChange, read

_FOLDER = "${workspaceFolder}"  # editors replace it by the project's directory
_REMOTE = ("url", "httpUrl", "serverUrl")


@dataclass(frozen=True, slots=True)
class Person:
    """The person whose own files `--user` changes."""

    home: str
    environment: Mapping[str, str]
    platform: str  # as in sys.platform


@dataclass(frozen=True, slots=True)
class Client:
    """One client: in which file its servers are, and in which form."""

    title: str
    format: Literal["json", "toml"]
    servers: str  # the key that has them by name
    project_file: str
    user_file: Callable[[Person], str]
    says_type: bool = False
    # If it starts servers elsewhere than in the project, and replaces a variable by the project's directory.
    expands_folder: tuple[str, ...] = ()
    commands: Callable[[Person], str] | None = None  # a person's slash commands; a project's are in .claude/commands
    project_note: str = ""
    user_note: str = ""


def _claude_home(person: Person) -> str:
    return person.environment.get("CLAUDE_CONFIG_DIR") or os.path.join(person.home, ".claude")


def _claude_file(person: Person) -> str:
    return os.path.join(person.environment.get("CLAUDE_CONFIG_DIR") or person.home, ".claude.json")


def _codex_file(person: Person) -> str:
    home = person.environment.get("CODEX_HOME") or os.path.join(person.home, ".codex")
    return os.path.join(home, "config.toml")


def _gemini_file(person: Person) -> str:
    return os.path.join(person.environment.get("GEMINI_CLI_HOME") or person.home, ".gemini", "settings.json")


def _vscode_file(person: Person) -> str:
    if person.platform == "darwin":
        return os.path.join(person.home, "Library", "Application Support", "Code", "User", "mcp.json")
    settings = person.environment.get("XDG_CONFIG_HOME") or os.path.join(person.home, ".config")
    return os.path.join(settings, "Code", "User", "mcp.json")


_CODEX_IS_QUICK = (
    "Codex waits about a second for a server before its first turn: with `sidecar daemon` running, this one is in "
    "time; `required = true` in its table makes Codex wait for it, and refuse to start without it."
)
CLIENTS: dict[str, Client] = {
    "claude": Client(
        "Claude Code",
        "json",
        "mcpServers",
        ".mcp.json",
        _claude_file,
        says_type=True,
        commands=lambda person: os.path.join(_claude_home(person), "commands"),
        project_note="Claude Code asks once whether it may use the servers of .mcp.json; `claude mcp list` shows it.",
        user_note="`claude mcp list` shows it, in every project.",
    ),
    "codex": Client(
        "Codex",
        "toml",
        "mcp_servers",
        ".codex/config.toml",
        _codex_file,
        project_note="Codex reads this file only in projects that you trust; `codex mcp list` shows it. "
        + _CODEX_IS_QUICK,
        user_note="`codex mcp list` shows it. " + _CODEX_IS_QUICK,
    ),
    "gemini": Client(
        "Gemini CLI",
        "json",
        "mcpServers",
        ".gemini/settings.json",
        _gemini_file,
        project_note="Gemini CLI starts servers only in folders that you trust; `gemini mcp list` shows it.",
        user_note="Gemini CLI starts servers only in folders that you trust; `gemini mcp list` shows it.",
    ),
    "cursor": Client(
        "Cursor",
        "json",
        "mcpServers",
        ".cursor/mcp.json",
        lambda person: os.path.join(person.home, ".cursor", "mcp.json"),
        expands_folder=("project", "user"),
        project_note="Cursor lists it in its settings, where it may have to be switched on.",
        user_note="Cursor lists it in its settings, where it may have to be switched on.",
    ),
    "vscode": Client(
        "VS Code",
        "json",
        "servers",
        ".vscode/mcp.json",
        _vscode_file,
        says_type=True,
        expands_folder=("project",),
        project_note="In VS Code, `MCP: List Servers` shows it, and asks once whether you trust it.",
        user_note="VS Code starts the servers of this file in your home directory, so this one does not know your "
        "project: set SIDECAR_PROJECT in its `env`, or install it in the project instead, without --user.",
    ),
}


def server_change(name: str, root: str, person: Person, program: Sequence[str], *, user: bool) -> FileChange:
    """The client's file with the server in it. `program`: what starts sidecar, without its arguments."""
    client = CLIENTS[name]
    path = client.user_file(person) if user else os.path.join(root, client.project_file)
    before = read(path)
    return FileChange(path, before, _edited(client, path, before or "", _entry(client, program, user=user)))


def command_change(name: str, root: str, person: Person, *, user: bool) -> FileChange | None:
    """The client's slash command `/workflow`, if it can have one. A file that is not ours stays as it is."""
    commands = CLIENTS[name].commands
    if commands is None:
        return None
    path = os.path.join(commands(person) if user else os.path.join(root, ".claude", "commands"), "workflow.md")
    before = read(path)
    is_ours = before is None or not before.strip() or COMMAND_MARK in before
    return FileChange(path, before, _workflow_command() if is_ours else before or "")


def _entry(client: Client, program: Sequence[str], *, user: bool) -> dict[str, Any]:
    command, *rest = program
    folder = ["--project", _FOLDER] if ("user" if user else "project") in client.expands_folder else []
    entry: dict[str, Any] = {"type": "stdio"} if client.says_type else {}
    return {**entry, "command": command, "args": [*rest, *folder, "serve"]}


def _edited(client: Client, path: str, text: str, entry: dict[str, Any]) -> str:
    """The text with the entry in it. ConfigError, with what to add by hand, if the text cannot be edited."""
    keys = (client.servers, MCP_SERVER)
    edit, parse = (_edited_toml, tomllib.loads) if client.format == "toml" else (_edited_json, _parsed_json)
    try:
        before = parse(text) if text.strip() else {}
        if not isinstance(before.get(client.servers, {}), dict):
            raise ValueError(f"{client.servers} is not an object")
        wanted = _merged(before, {client.servers: {MCP_SERVER: entry}})
        _refuse_remote(before, keys, path)
        if wanted == before:
            return text
        after = edit(text, keys, entry)
        if parse(after) == wanted:
            return after
        problem = "its form is not supported"
    except ValueError as error:
        problem = str(error)
    snippet = edit("", keys, entry)
    raise ConfigError(f"{path} was not changed: {problem}. Add this yourself:\n\n{snippet}")


def _edited_json(text: str, keys: Sequence[str], entry: dict[str, Any]) -> str:
    """With the indent and line ends that it has. Comments would be lost, so a text with comments is not read."""
    before = _parsed_json(text) if text.strip() else {}
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    after = json.dumps(_merged(before, _at(keys, entry)), indent=found[1] if found else 2, ensure_ascii=False)
    after += "\n" if text.endswith("\n") or not text else ""
    return after.replace("\n", "\r\n") if "\r\n" in text else after


def _parsed_json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is not plain JSON (line {error.lineno}: {error.msg}); comments and commas at the end of a list "
            "would be lost"
        ) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a duplicate key")
    return found


def _edited_toml(text: str, keys: Sequence[str], entry: dict[str, Any]) -> str:
    """With comments and layout as they are."""
    import tomlkit  # noqa: PLC0415 - only here
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(text)
        table: Any = document
        for key in keys[:-1]:
            if key not in table:
                table[key] = tomlkit.table(is_super_table=True)
            table = table[key]
        if keys[-1] in table:
            table[keys[-1]].update(entry)
        else:
            table[keys[-1]] = entry  # in the form of what is around it
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError) as error:  # `mcp_servers = 1`, for one
        raise ValueError(f"it cannot be edited ({error})") from None


def _refuse_remote(value: Any, keys: Sequence[str], path: str) -> None:
    """An entry with the address of a running server was made on purpose and cannot be merged with ours."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    found = next((value[name] for name in _REMOTE if name in value), None) if isinstance(value, dict) else None
    if found is not None:
        raise ConfigError(f"{path} has {'.'.join(keys)} already, at {found}; remove that entry first")


def _at(keys: Sequence[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _merged(old: Any, new: Any) -> Any:
    """Objects are merged, anything else is replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


# --- the slash command `/workflow` of Claude Code


# A file with this line is ours and may be replaced by a newer one.
COMMAND_MARK = "<!-- Made by `sidecar mcp install claude`, which also renews it. -->"
_TOOLS = (
    "workflow_list",
    "workflow_get_info",
    "workflow_start",
    "workflow_get_next_step",
    "workflow_step_complete",
    "workflow_checkpoint",
    "workflow_complete",
    "workflow_resume",
    "workflow_status",
    "workflow_state_read",
    "workflow_state_update",
    "abort",
)
_COMMAND = """\
---
description: List, start, resume and look at the workflows of the sidecar
argument-hint: list | NAME info | NAME start [--input key=value ...] | resume ID | status [ID]
allowed-tools: {tools}
---
{mark}

The person typed: /workflow $ARGUMENTS

All tools named here are those of the MCP server `{server}`. Do what the first line says that fits:

- `list`: call `workflow_list`. Show every workflow with its name, its description and where it comes from.
- `NAME info`: call `workflow_get_info` with NAME as `workflow`. Show what it is for, and its inputs with their types,
  which of them are required, and their defaults.
- `NAME start`, with any number of `--input key=value`: execute that workflow, as is said under "Execute" below. The
  inputs are the words behind `--input`, each value as the type that the workflow declares for it.
- `resume ID`: call `workflow_resume` with ID as `workflow_id`, and go on under "Execute" from the call of
  `workflow_get_next_step` on. Where the answer says that the run waits for something, ask the person for it first, and
  give it as `answer` or `feedback`. Only where the person approves what was submitted, give `approve` as true.
- `status ID`: call `workflow_status` with ID as `workflow_id`. Show its status, step and iteration, and why it ended if
  it did. `status` alone: call it without arguments, and show the newest runs.

Where none of these fits, show these five forms, and call nothing.

## Execute

{execute}"""


def _workflow_command() -> str:
    """The text of the slash command: a prompt that turns its words into calls of sidecar's tools."""
    with open(os.path.join(naming.builtin_directory("prompts"), "orchestrator.md"), encoding="utf-8") as file:
        body = file.read().split("---\n", 2)[2]
    execute = body.replace("{{ workflow }}", "NAME").replace("{{ inputs }}", "those that the person typed.")
    tools = ", ".join(f"mcp__{MCP_SERVER}__{name}" for name in _TOOLS)
    return _COMMAND.format(tools=tools, mark=COMMAND_MARK, server=MCP_SERVER, execute=execute)
