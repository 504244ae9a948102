"""Which MCP servers there are, and what is said where one is defined wrongly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import ConfigError
from sidecar.mcp_client.servers import HttpServer, Servers, StdioServer


def servers(root: Path, configured: dict[str, Any] | None = None, **environment: str) -> Servers:
    return Servers(str(root), configured or {}, environment)


def of_project(root: Path, **entries: object) -> None:
    (root / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))


def test_variables_are_filled_in_everywhere_and_defaults_only_where_a_variable_is_not_set(tmp_path: Path) -> None:
    of_project(
        tmp_path,
        local={
            "command": "${BIN}/run",
            "args": ["--at=${PLACE:-here}", "${BIN:-never}", "$BIN", "${PLACE:-}"],
            "env": {"A": "${EMPTY:-full}", "B": "<${BIN}${BIN}>"},
            "cwd": "${PLACE:-below}",
        },
        remote={"type": "streamable-http", "url": "https://${BIN}/mcp", "headers": {"Authorization": "Bearer ${BIN}"}},
    )
    found = servers(tmp_path, BIN="b", EMPTY="")
    assert found.find("local") == StdioServer(
        "local", ("b/run", "--at=here", "b", "$BIN", ""), str(tmp_path / "below"), {"A": "", "B": "<bb>"}
    )
    assert found.find("remote") == HttpServer("remote", "https://b/mcp", {"Authorization": "Bearer b"})


def test_a_value_that_looks_like_a_variable_is_not_filled_in_again(tmp_path: Path) -> None:
    of_project(tmp_path, a={"command": "${ONE}"})
    server = servers(tmp_path, ONE="${TWO}", TWO="2").find("a")
    assert isinstance(server, StdioServer)
    assert server.argv == ("${TWO}",)


def test_a_variable_that_is_not_set_is_named_with_its_place_and_the_other_servers_still_work(tmp_path: Path) -> None:
    of_project(tmp_path, a={"command": "a", "env": {"TOKEN": "${NOWHERE}"}}, b={"command": "b"})
    found = servers(tmp_path)
    assert found.find("b").name == "b"
    with pytest.raises(ConfigError, match=r"'a': `env\.TOKEN` needs the variable NOWHERE, which is not set"):
        found.find("a")


def test_a_server_runs_in_the_projects_root_unless_it_says_where(tmp_path: Path) -> None:
    of_project(tmp_path, a={"command": "a"}, b={"command": "b", "cwd": "/"})
    assert [getattr(servers(tmp_path).find(name), "cwd", None) for name in "ab"] == [str(tmp_path), "/"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("a", "no object"),
        ({}, "`command` is missing, and so is `url`"),
        ({"type": "stdio", "url": "http://x"}, "`command` is missing"),
        ({"type": "http"}, "`url` has to be an address"),
        ({"url": "ftp://x"}, "`url` has to be an address"),
        ({"type": "sse", "url": "http://x"}, "`sse` is not spoken"),
        ({"type": "smoke", "command": "a"}, "unknown type 'smoke'"),
        ({"command": ["a", "b"]}, "`command` has to be a text"),
        ({"command": "a", "args": "b"}, "`args` has to be a list"),
        ({"command": "a", "args": ["b", 1]}, r"`args\[1\]` has to be a text"),
        ({"command": "a", "env": ["b"]}, "`env` has to be an object"),
        ({"command": "a", "env": {"B": 1}}, r"`env\.B` has to be a text"),
        ({"url": "http://x", "headers": {"B": None}}, r"`headers\.B` has to be a text"),
    ],
)
def test_a_wrong_definition_is_refused_with_its_file_and_its_name(tmp_path: Path, entry: object, message: str) -> None:
    of_project(tmp_path, odd=entry)
    with pytest.raises(ConfigError, match=rf"\.mcp\.json: MCP server 'odd': .*{message}"):
        servers(tmp_path).find("odd")


@pytest.mark.parametrize("content", ["{", "[]", '{"mcpServers": []}', "\ufeff{}", "[" * 100_000, "\udcff"])
def test_a_broken_file_is_an_error_for_all_but_the_servers_of_the_settings(tmp_path: Path, content: str) -> None:
    (tmp_path / ".mcp.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    found = servers(tmp_path, {"a": {"command": "a"}})
    assert found.find("a").name == "a"
    with pytest.raises(ConfigError, match=r"\.mcp\.json"):
        found.find("b")
    with pytest.raises(ConfigError, match=r"\.mcp\.json"):
        found.names()


def test_a_pipe_in_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".mcp.json")
    with pytest.raises(ConfigError, match="not JSON"):
        servers(tmp_path).names()


def test_an_unknown_server_is_answered_with_the_nearest_name_or_all_of_them(tmp_path: Path) -> None:
    of_project(tmp_path, files={"command": "a"}, tickets={"command": "b"})
    with pytest.raises(ConfigError, match="no MCP server 'file'; did you mean 'files'"):
        servers(tmp_path).find("file")
    with pytest.raises(ConfigError, match="available: files, tickets"):
        servers(tmp_path).find("zzz")


def test_nothing_that_may_be_a_secret_is_shown(tmp_path: Path) -> None:
    of_project(
        tmp_path,
        a={"command": "a", "args": ["--key=s3cret"], "env": {"K": "s3cret"}},
        b={"url": "http://s3cret@x", "headers": {"K": "s3cret"}},
    )
    found = servers(tmp_path)
    assert "s3cret" not in repr([found.find("a"), found.find("b")])
