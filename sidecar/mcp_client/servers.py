"""The MCP servers that are configured for a project: those of the settings first, then those of `.mcp.json`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from sidecar import layout
from sidecar.errors import ConfigError

PROJECT_FILE = ".mcp.json"
_SETTING = "mcp_servers"
_HTTP_TYPES = ("http", "streamable-http", "streamable_http", "streamableHttp")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a process of the run. Its arguments and variables may hold secrets: they are never shown."""

    name: str
    argv: tuple[str, ...] = field(repr=False)
    cwd: str
    env: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server on the network. Its address and headers may hold secrets: they are never shown."""

    name: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


Server = StdioServer | HttpServer


class Servers:
    """The configured servers, read when they are needed: a wrong definition is an error only where it is used."""

    def __init__(self, root: str, configured: Mapping[str, Mapping[str, Any]], environment: Mapping[str, str]) -> None:
        self._root = root
        self._configured = configured
        self._environment = environment
        self._path = os.path.join(root, PROJECT_FILE)
        self._of_project: dict[str, Any] | None = None

    def names(self) -> list[str]:
        """Every server, those of the settings first; ConfigError where `.mcp.json` cannot be read."""
        return list(dict.fromkeys((*self._configured, *self._project_servers())))

    def find(self, name: str) -> Server:
        """A server by its name, its variables replaced; ConfigError where there is none, or its definition is wrong."""
        # The file is not read for a server of the settings: these count also where the file is broken.
        if name in self._configured:
            return self._read(name, self._configured[name], f"the setting {_SETTING}")
        found = self._project_servers()
        if name in found:
            return self._read(name, found[name], self._path)
        if names := self.names():
            raise ConfigError(f"no MCP server {name!r}; {nearest(name, names)}")
        raise ConfigError(f"no MCP server {name!r}: none is configured, in {self._path} or in the setting {_SETTING}")

    def _project_servers(self) -> dict[str, Any]:
        if self._of_project is None:
            self._of_project = _from_file(self._path)
        return self._of_project

    def _read(self, name: str, entry: object, where: str) -> Server:
        try:
            return self._server(name, entry)
        except ValueError as error:
            raise ConfigError(f"{where}: MCP server {name!r}: {error}") from None

    def _server(self, name: str, entry: object) -> Server:
        if not isinstance(entry, dict):
            raise ValueError("is no object with `command` or `url`")
        kind = entry.get("type")
        if kind == "sse":
            hint = "ask the server's makers for its streamable HTTP address"
            raise ValueError(f"the type `sse` is not spoken here; {hint}")
        if kind is not None and kind != "stdio" and kind not in _HTTP_TYPES:
            raise ValueError(f"unknown type {kind!r}: stdio or http")
        if kind in _HTTP_TYPES or (kind is None and "url" in entry):
            url = self._text(entry.get("url") or "", "url")
            if not url.startswith(("http://", "https://")):
                raise ValueError("`url` has to be an address that begins with http:// or https://")
            return HttpServer(name, url, self._table(entry, "headers"))
        command, arguments = self._text(entry.get("command") or "", "command"), entry.get("args") or []
        if not command:
            raise ValueError("`command` is missing, and so is `url`: one of them is needed")
        if not isinstance(arguments, list):
            raise ValueError("`args` has to be a list of texts")
        argv = (os.path.expanduser(command), *(self._text(one, f"args[{at}]") for at, one in enumerate(arguments)))
        directory = os.path.join(self._root, os.path.expanduser(self._text(entry.get("cwd") or "", "cwd")))
        return StdioServer(name, argv, os.path.normpath(directory), self._table(entry, "env"))

    def _table(self, entry: dict[str, Any], key: str) -> dict[str, str]:
        values = entry.get(key) or {}
        if not isinstance(values, dict):
            raise ValueError(f"`{key}` has to be an object of texts")
        return {str(name): self._text(value, f"{key}.{name}") for name, value in values.items()}

    def _text(self, value: object, place: str) -> str:
        """A text of a definition with `${VAR}` and `${VAR:-default}` in it replaced."""
        if not isinstance(value, str):
            raise ValueError(f"`{place}` has to be a text: put it in quotes")

        def fill(match: re.Match[str]) -> str:
            name, default = match.groups()
            found = self._environment.get(name, default)
            if found is None:
                raise ValueError(f"`{place}` needs the variable {name}, which is not set; ${{{name}:-…}} has a default")
            return str(found)

        return _VARIABLE.sub(fill, value)


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint for the message about a name that does not exist."""
    known = sorted(names)
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"available: {', '.join(known) or 'none'}"


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8", opener=layout.open_at_once) as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    servers = content.get("mcpServers", {}) if isinstance(content, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(f'{path}: it has to be an object with the servers in "mcpServers", by name')
    return servers
