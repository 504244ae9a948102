"""Keys put into somebody's TOML file change nothing else in it."""

from __future__ import annotations

import tomllib

import pytest

from sidecar.service import toml_text

VALUES: dict[str, str | list[str]] = {"command": "sidecar", "args": ["--project", 'a "b" \\ ü', "serve"]}
PATH = ("mcp_servers", "sidecar")


def put(text: str) -> str:
    return toml_text.put(text, PATH, VALUES)


def test_a_new_table_goes_to_the_end_and_everything_before_it_stays() -> None:
    text = '# mine\nmodel = "o" # the good one\n\n[mcp_servers.git]\ncommand = "uvx"\n'
    found = put(text)
    assert found.startswith(text + "\n[mcp_servers.sidecar]\ncommand = ")
    assert tomllib.loads(found)["mcp_servers"] == {"git": {"command": "uvx"}, "sidecar": VALUES}
    assert put(found) == found


@pytest.mark.parametrize("text", ["", "\n", "a = 1", "a = 1\r\n[b]\r\nc = 2\r\n"])
def test_any_end_of_the_text_before_it_will_do(text: str) -> None:
    found = put(text)
    assert tomllib.loads(found) == {**tomllib.loads(text), "mcp_servers": {"sidecar": VALUES}}
    assert ("\r\n" in found) == ("\r\n" in text)


@pytest.mark.parametrize("header", ["[mcp_servers.sidecar]", '  [ mcp_servers . "sidecar" ] # ours'])
def test_a_table_that_is_there_keeps_its_other_lines_and_its_comments(header: str) -> None:
    text = f"""\
{header}
# where it is
command = "old#er" # since May
args = [
  "x", # one
  "[mcp_servers.sidecar]",
]
startup_timeout_sec = 20

[mcp_servers.sidecar.env]
command = "not this one"
"""
    found = put(text)
    assert found.splitlines()[:3] == [header, "# where it is", 'command = "sidecar" # since May']
    server = tomllib.loads(found)["mcp_servers"]["sidecar"]
    assert server == {**VALUES, "startup_timeout_sec": 20, "env": {"command": "not this one"}}
    assert put(found) == found


def test_a_key_that_is_missing_is_put_below_the_header() -> None:
    found = put('[mcp_servers.sidecar]\nenabled = false\n[after]\ncommand = "its own"\n')
    assert tomllib.loads(found) == {
        "mcp_servers": {"sidecar": {**VALUES, "enabled": False}},
        "after": {"command": "its own"},
    }


def test_a_header_inside_a_text_is_text() -> None:
    text = 'note = """\n[mcp_servers.other]\n"""\n'
    assert tomllib.loads(put(text)) == {**tomllib.loads(text), "mcp_servers": {"sidecar": VALUES}}
