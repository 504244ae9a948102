"""`sidecar mcp install`: the client's file as the client will read it, and nothing lost that was in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.kit import SIDECAR, call
from tests.kit.mcp_client import tools

PROJECT_FILES = {
    "claude": ".mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".vscode/mcp.json",
}
USER_FILES = {
    "claude": ".claude.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "cursor": ".cursor/mcp.json",
    "vscode": "Library/Application Support/Code/User/mcp.json"
    if sys.platform == "darwin"
    else ".config/Code/User/mcp.json",
}
SERVERS = {"claude": "mcpServers", "codex": "mcp_servers", "gemini": "mcpServers", "cursor": "mcpServers"}
IN_EDITORS = ["--project", "${workspaceFolder}", "serve"]


class Installation:
    """A project and a home directory, both empty, and the command."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.home, self.project = directory / "home", directory / "project"
        for path in (self.home, self.project / ".git"):
            path.mkdir(parents=True)
        for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_CONFIG_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("PATH", "/usr/bin:/bin")
        patch.setenv("HOME", str(self.home))
        patch.chdir(self.project)

    def run(self, *words: str, code: int = 0) -> tuple[str, str]:
        done = call("mcp", "install", *words)
        assert done.returncode == code, done
        return done.stdout, done.stderr

    def files(self) -> dict[str, bytes]:
        both = [*self.project.rglob("*"), *self.home.rglob("*")]
        return {str(path): path.read_bytes() for path in both if path.is_file()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    return Installation(tmp_path, monkeypatch)


def read(path: Path) -> dict[str, Any]:
    text = path.read_text()
    found: dict[str, Any] = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    return found


def entry(path: Path, client: str) -> dict[str, Any]:
    found: dict[str, Any] = read(path)[SERVERS.get(client, "servers")]["sidecar"]
    return found


def test_the_installed_command_does_it(here: Installation) -> None:
    result = subprocess.run([SIDECAR, "mcp", "install", "codex"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert entry(here.project / ".codex" / "config.toml", "codex")["args"] == ["serve"]
    assert "codex mcp list" in result.stdout


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_a_project_gets_the_file_that_its_client_reads(
    here: Installation, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    deeper = here.project / "src" / "deep"
    deeper.mkdir(parents=True)
    monkeypatch.chdir(deeper)
    shown, _ = here.run(client)
    path = here.project / PROJECT_FILES[client]
    found = entry(path, client)
    assert found["command"] == str(SIDECAR)
    assert found["args"] == (IN_EDITORS if client in ("cursor", "vscode") else ["serve"])
    assert found.get("type") == ("stdio" if client in ("claude", "vscode") else None)
    assert f"{path}: new" in shown
    assert str(SIDECAR) in shown
    assert list(here.home.iterdir()) == []


@pytest.mark.parametrize("client", USER_FILES)
def test_a_person_gets_it_for_all_projects(here: Installation, client: str) -> None:
    here.run(client, "--user")
    found = entry(here.home / USER_FILES[client], client)
    assert found["command"] == str(SIDECAR)
    assert found["args"] == (IN_EDITORS if client == "cursor" else ["serve"])
    assert [path.name for path in here.project.iterdir()] == [".git"]


@pytest.mark.parametrize(
    ("client", "variable", "file"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_a_client_whose_home_is_elsewhere_is_found_there(
    here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: str, variable: str, file: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "elsewhere"))
    here.run(client, "--user")
    assert entry(tmp_path / "elsewhere" / file, client)["args"] == ["serve"]
    assert list(here.home.iterdir()) == []


@pytest.mark.parametrize("scope", [[], ["--user"]])
@pytest.mark.parametrize("client", PROJECT_FILES)
def test_the_second_time_changes_nothing(here: Installation, client: str, scope: list[str]) -> None:
    here.run(client, *scope)
    before = here.files()
    shown, _ = here.run(client, *scope)
    assert here.files() == before
    assert "unchanged" in shown
    assert ": new" not in shown


@pytest.mark.parametrize("client", PROJECT_FILES)
def test_print_only_shows(here: Installation, client: str) -> None:
    shown, _ = here.run(client, "--print")
    assert here.files() == {}
    assert PROJECT_FILES[client] in shown
    assert str(SIDECAR) in shown


def test_a_sidecar_on_the_path_is_named_as_everybody_has_it_in_the_project_and_by_its_place_at_home(
    here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sidecar").symlink_to(SIDECAR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    here.run("claude")
    assert entry(here.project / ".mcp.json", "claude")["command"] == "sidecar"
    here.run("claude", "--user")
    assert entry(here.home / ".claude.json", "claude")["command"] == str(tmp_path / "bin" / "sidecar")


def test_another_sidecar_on_the_path_is_not_taken_for_this_one(
    here: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "bin" / "sidecar"
    other.parent.mkdir()
    shutil.copy("/bin/true", other)
    monkeypatch.setenv("PATH", f"{other.parent}:/usr/bin:/bin")
    here.run("claude")
    assert entry(here.project / ".mcp.json", "claude")["command"] == str(SIDECAR)


def test_what_is_there_is_merged_kept_as_it_was_written_and_backed_up(here: Installation) -> None:
    path = here.project / ".vscode" / "mcp.json"
    path.parent.mkdir()
    text = '{\n\t"servers": {\n\t\t"git": {\n\t\t\t"type": "stdio",\n\t\t\t"command": "uvx"\n\t\t}\n\t}\n}\n'
    path.write_text(text)
    path.chmod(0o640)
    shown, _ = here.run("vscode")
    after = path.read_text()
    lines = [line.rstrip(",") for line in after.splitlines()]
    assert [line for line in text.splitlines() if line.rstrip(",") not in lines] == []
    assert after.count("sidecar") == 2  # the name, and the program
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    [backup] = path.parent.glob("mcp.json.backup-*")
    assert backup.read_text() == text
    assert stat.S_IMODE(backup.stat().st_mode) == 0o640
    assert str(backup) in shown
    assert "+" in shown
    here.run("vscode")
    assert path.read_text() == after
    assert len(list(path.parent.iterdir())) == 2


def test_a_toml_file_keeps_its_comments_and_the_keys_that_a_person_added(here: Installation) -> None:
    path = here.project / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(
        '# mine\n[mcp_servers.sidecar] # ours\ncommand = "old" # for now\nrequired = true\n[a]\nb = 1 # b\n'
    )
    here.run("codex")
    after = path.read_text()
    assert [comment for comment in ("# mine", "# ours", "# for now", "# b") if comment not in after] == []
    assert read(path) == {
        "mcp_servers": {"sidecar": {"command": str(SIDECAR), "args": ["serve"], "required": True}},
        "a": {"b": 1},
    }


def test_a_link_stays_a_link_and_its_target_is_edited(here: Installation, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles" / "claude.json"
    kept.parent.mkdir()
    kept.write_text('{"theme": "dark"}')
    (here.home / ".claude.json").symlink_to(kept)
    here.run("claude", "--user")
    assert (here.home / ".claude.json").is_symlink()
    assert read(kept)["theme"] == "dark"
    assert entry(kept, "claude")["args"] == ["serve"]


@pytest.mark.parametrize(
    ("client", "text", "complaint"),
    [
        ("claude", '{"mcpServers": {', "line 1"),
        ("claude", "{} // with a comment, which Claude Code does not take", "not plain JSON (line 1"),
        ("claude", '{\n"mcpServers": []}', "mcpServers is not an object"),
        ("gemini", '{\n"theme": dark}', "line 2"),
        ("codex", "model = \n", "line 1"),
        ("codex", "mcp_servers = 1\n", "mcp_servers is not an object"),
        ("cursor", '{"mcpServers": {"sidecar": {"url": "http://localhost:1"}}}', "http://localhost:1"),
    ],
)
def test_a_file_that_cannot_be_edited_is_refused_and_nothing_is_written(
    here: Installation, client: str, text: str, complaint: str
) -> None:
    path = here.project / PROJECT_FILES[client]
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    out, errors = here.run(client, code=2)
    assert out == ""
    assert str(path) in errors
    assert complaint in errors
    assert "already" in complaint or "already" in errors or str(SIDECAR) in errors  # to be added by hand
    assert here.files() == {str(path): text.encode()}


def test_one_file_that_cannot_be_edited_leaves_the_other_alone(here: Installation) -> None:
    command(here).mkdir(parents=True)
    assert str(command(here)) in here.run("claude", code=2)[1]
    assert here.files() == {}


def test_a_file_that_is_no_text_or_no_file_is_told_in_one_line(here: Installation) -> None:
    path = here.project / ".mcp.json"
    path.write_bytes(b'{"a": "\xff"}')
    assert "not UTF-8" in here.run("claude", code=2)[1]
    path.unlink()
    path.mkdir()
    assert str(path) in here.run("claude", code=2)[1]
    path.rmdir()
    os.mkfifo(path)
    assert "not a regular file" in here.run("claude", code=2)[1]


@pytest.mark.parametrize("words", [[], ["emacs"], ["claude", "codex"], ["claude", "--all"]])
def test_bad_words_are_answered_with_the_usage(here: Installation, words: list[str]) -> None:
    _, errors = here.run(*words, code=2)
    assert "usage: sidecar mcp install CLIENT" in errors
    assert here.files() == {}


# --- the command /workflow


def command(here: Installation) -> Path:
    return here.project / ".claude" / "commands" / "workflow.md"


def test_claude_gets_a_workflow_command_that_names_only_tools_that_there_are(here: Installation) -> None:
    here.run("claude")
    text = command(here).read_text()
    front, body = text.removeprefix("---\n").split("---\n", 1)
    assert "$ARGUMENTS" in body
    for form in ("`list`", "`NAME info`", "`NAME start`", "`resume ID`", "`status ID`"):
        assert form in body
    named = set(re.findall(r"`((?:workflow|mcp)_\w+)`|[Cc]all\s+`(\w+)`", body))
    named = {word for words in named for word in words} - {"", "workflow_id", "mcp_call"}
    expected = {"workflow_list", "workflow_get_next_step", "workflow_resume", "workflow_status", "abort"}
    there_are = set(tools(here.project))
    assert expected <= named <= there_are
    allowed = set(re.findall(r"mcp__sidecar__(\w+)", front))
    assert named <= allowed <= there_are
    assert "{{" not in text


def test_the_workflow_command_of_a_person_is_for_all_projects(here: Installation) -> None:
    here.run("claude", "--user")
    assert "$ARGUMENTS" in (here.home / ".claude" / "commands" / "workflow.md").read_text()


def test_an_older_workflow_command_of_ours_is_renewed_with_a_backup(here: Installation) -> None:
    here.run("claude")
    made = command(here).read_text()
    command(here).write_text(made.replace("## Execute", "## Do"))
    here.run("claude")
    assert command(here).read_text() == made
    assert len(list(command(here).parent.iterdir())) == 2


def test_a_workflow_command_that_somebody_else_wrote_stays(here: Installation) -> None:
    command(here).parent.mkdir(parents=True)
    command(here).write_text("Do my own thing with $ARGUMENTS\n")
    shown, _ = here.run("claude")
    assert command(here).read_text() == "Do my own thing with $ARGUMENTS\n"
    assert "another command /workflow" in shown
    assert (here.project / ".mcp.json").exists()
