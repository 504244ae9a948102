"""What an MCP client has to be told to start `sidecar serve`: in which file, under which keys. Nothing is read here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sidecar.agents.adapters.adapter import MCP_SERVER
from sidecar.errors import ConfigError
from sidecar.service import json_text, toml_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FOLDER = "${workspaceFolder}"  # what editors put the project's directory for
_REMOTE = ("url", "httpUrl", "serverUrl")


@dataclass(frozen=True, slots=True)
class Person:
    """Whose own files are meant by `--user`."""

    home: str
    environment: Mapping[str, str]
    platform: str  # as in sys.platform


@dataclass(frozen=True, slots=True)
class Client:
    """One client: where its servers are configured, and how."""

    title: str
    format: Literal["json", "json with comments", "toml"]
    servers: str  # the key that has them by name
    project_file: str
    user_file: Callable[[Person], str]
    says_type: bool = False
    # Where it starts servers elsewhere than in the project, and puts the project's directory for a variable.
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
        "json with comments",
        "mcpServers",
        ".gemini/settings.json",
        _gemini_file,
        project_note="Gemini CLI starts servers only in folders that you trust; `gemini mcp list` shows it.",
        user_note="Gemini CLI starts servers only in folders that you trust; `gemini mcp list` shows it.",
    ),
    "cursor": Client(
        "Cursor",
        "json with comments",
        "mcpServers",
        ".cursor/mcp.json",
        lambda person: os.path.join(person.home, ".cursor", "mcp.json"),
        expands_folder=("project", "user"),
        project_note="Cursor lists it in its settings, where it may have to be switched on.",
        user_note="Cursor lists it in its settings, where it may have to be switched on.",
    ),
    "vscode": Client(
        "VS Code",
        "json with comments",
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


@dataclass(frozen=True, slots=True)
class Change:
    """One file to be changed: `edited` makes its new text of the old one."""

    path: str
    edited: Callable[[str], str]


def configuration(name: str, root: str, person: Person, program: Sequence[str], *, user: bool) -> Change:
    """The client's file with the server in it. `program`: what starts sidecar, without its arguments."""
    client = CLIENTS[name]
    path = client.user_file(person) if user else os.path.join(root, client.project_file)
    entry = _entry(client, program, "user" if user else "project")
    return Change(path, lambda text: _edited(client, path, text, entry))


def command_file(name: str, root: str, person: Person, *, user: bool) -> str | None:
    """Where the client finds a slash command `/workflow`, if it has such."""
    commands = CLIENTS[name].commands
    if commands is None:
        return None
    return os.path.join(commands(person) if user else os.path.join(root, ".claude", "commands"), "workflow.md")


def _entry(client: Client, program: Sequence[str], scope: str) -> dict[str, Any]:
    command, *rest = program
    folder = ["--project", _FOLDER] if scope in client.expands_folder else []
    entry: dict[str, Any] = {"type": "stdio"} if client.says_type else {}
    return {**entry, "command": command, "args": [*rest, *folder, "serve"]}


def _edited(client: Client, path: str, text: str, entry: dict[str, Any]) -> str:
    """The text with the entry in it, and nothing else changed; ConfigError where that cannot be done for sure."""
    keys = (client.servers, MCP_SERVER)
    try:
        before = _read(client, text)
        _refuse_remote(before, keys, path)
        if client.format == "toml":
            after = text if _holds(before, keys, entry) else toml_text.put(text, keys, entry)
        else:
            after = json_text.put(text, keys, entry, comments=client.format != "json")
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read, and is left as it is: {error}") from None
    try:
        right = _read(client, after) == _merged(before, _at(keys, entry))
    except ValueError:
        right = False
    if not right:
        raise ConfigError(
            f"{path} is written in a way that cannot be edited safely, and is left as it is; "
            f"add {'.'.join(keys)} yourself: --print shows what"
        )
    return after


def text_of(name: str, program: Sequence[str], *, user: bool) -> str:
    """What a file would have that is only made for this."""
    client = CLIENTS[name]
    entry = _entry(client, program, "user" if user else "project")
    return _edited(client, client.project_file, "", entry)


def _read(client: Client, text: str) -> Any:
    if client.format == "toml":
        return toml_text.read(text)
    return json_text.read(text, comments=client.format != "json")


def _refuse_remote(value: Any, keys: Sequence[str], path: str) -> None:
    """An entry that reaches a running server by its address was made on purpose, and cannot be merged with ours."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    found = next((value[name] for name in _REMOTE if name in value), None) if isinstance(value, dict) else None
    if found is not None:
        raise ConfigError(f"{path} has {'.'.join(keys)} already, at {found}; take that entry out first")


def _at(keys: Sequence[str], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def _holds(value: Any, keys: Sequence[str], entry: dict[str, Any]) -> bool:
    return bool(_merged(value, _at(keys, entry)) == value)


def _merged(old: Any, new: Any) -> Any:
    """Objects are merged, anything else is replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
