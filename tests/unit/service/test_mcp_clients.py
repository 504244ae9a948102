"""The file of an MCP client gets one entry, and nothing else in it changes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import ConfigError
from sidecar.service.file_change import FileChange
from sidecar.service.mcp_clients import CLIENTS, Person, _edited, server_change

ENTRY = {"command": "sidecar", "args": ["serve"]}
KEYS = st.text(st.characters(codec="utf-8"), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
DOCUMENTS = st.fixed_dictionaries({}, optional={"mcpServers": st.dictionaries(KEYS, VALUES, max_size=3), "a": VALUES})


def put(text: str, client: str = "gemini") -> str:
    return _edited(CLIENTS[client], "settings", text, ENTRY)


@given(DOCUMENTS, st.sampled_from([None, 2, 4, "\t"]), st.booleans())
def test_every_json_document_keeps_its_meaning_indent_and_line_ends(
    document: dict[str, Any], indent: int | str | None, windows: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    text = text.replace("\n", "\r\n") if windows else text
    found = put(text)
    wanted = {**document, "mcpServers": {**document.get("mcpServers", {}), "sidecar": ENTRY}}
    if isinstance(existing := document.get("mcpServers", {}).get("sidecar"), dict):
        wanted["mcpServers"]["sidecar"] = {**existing, **ENTRY}
    assert json.loads(found) == wanted
    assert put(found) == found
    assert not ("\r\n" in text and re.search(r"(?<!\r)\n", found))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1} // mine', "it is not plain JSON (line 1"),
        ('{\n"a": [1,],\n}', "it is not plain JSON (line 2"),
        ('{"a": 1, "a": 2}', "it has a duplicate key"),
        ("[]", "it is not a JSON object"),
        ('{"mcpServers": {"sidecar": {"url": "http://x"}}}', "has mcpServers.sidecar already, at http://x"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_json_file_that_would_lose_something_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as refused:
        put(text)
    if "already" not in problem:
        assert json.loads(str(refused.value).partition("yourself:")[2]) == {"mcpServers": {"sidecar": ENTRY}}


def test_toml_keeps_comments_layout_and_what_a_person_added() -> None:
    text = '# mine\n[mcp_servers.sidecar] # ours\ncommand = "old"\ntimeout = 5 # s\n\n[a]\nb = 1 # b\n'
    found = put(text, "codex")
    assert tomllib.loads(found)["mcp_servers"]["sidecar"] == {**ENTRY, "timeout": 5}
    assert [line for line in text.splitlines() if "#" in line and line not in found.splitlines()] == []
    assert put(found, "codex") == found


@pytest.mark.parametrize(
    "text", ["", "[mcp_servers.git]\ncommand = 'uvx'\n", "mcp_servers = {git = {command = 'uvx'}}\n", "[[a]]\nb = 1\n"]
)
def test_every_form_of_a_toml_file_gets_the_entry(text: str) -> None:
    found = tomllib.loads(put(text, "codex"))
    servers = tomllib.loads(text).get("mcp_servers", {})
    assert found == {**tomllib.loads(text), "mcp_servers": {**servers, "sidecar": ENTRY}}


@pytest.mark.parametrize("text", ["mcp_servers = 1\n", "a = \n"])
def test_a_toml_file_that_cannot_be_edited_is_refused_with_what_to_add(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\[mcp_servers\.sidecar\]"):
        put(text, "codex")


def test_what_another_program_wrote_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / ".mcp.json"
    path.write_text("{}")
    change = server_change("claude", str(tmp_path), Person(str(tmp_path), {}, "linux"), ["sidecar"], user=False)
    path.write_text('{"theirs": 1}')
    with pytest.raises(ConfigError, match="another program"):
        change.write()
    assert {found.name: found.read_text() for found in tmp_path.iterdir()} == {".mcp.json": '{"theirs": 1}'}


def test_two_changes_within_a_second_leave_two_backups(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("1")
    backups = [FileChange(str(path), text, f"{text}+").write() for text in ("1", "1+")]
    assert path.read_text() == "1++"
    assert [Path(backup).read_text() for backup in backups if backup] == ["1", "1+"]
