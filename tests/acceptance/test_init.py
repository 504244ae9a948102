"""`sidecar init` and `sidecar config`, as somebody who begins has them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit import call

if TYPE_CHECKING:
    from collections.abc import Callable

Run = subprocess.CompletedProcess[str]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    (tmp_path / "project").mkdir()

    def run_it(*arguments: str, **environment: str) -> Run:
        return call(*arguments, cwd=tmp_path / "project", **environment)

    return run_it


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "project" / ".swissarmyhammer"


def test_what_it_makes_works_as_it_says(run: Callable[..., Run], state: Path) -> None:
    made = run("init")
    assert (made.returncode, made.stderr) == (0, "")
    assert "sidecar hello World" in made.stdout
    assert {path.name for path in state.iterdir()} == {".gitignore", "config.yaml", "workflows", "workspaces"}
    assert {path.name for path in (state / "workspaces" / "first").iterdir()} >= {"INSTRUCTIONS.md", "TODO.md"}
    assert run("validate").returncode == 0
    greeted = run("hello", "World", "-p", "pause=0")
    assert greeted.returncode == 0
    assert "Hello, World! I counted to 5." in greeted.stdout


def test_nothing_that_is_there_is_touched(run: Callable[..., Run], state: Path) -> None:
    mine = "# mine\n"
    for name in ("config.yaml", "workflows/hello.yaml", "workspaces/first/TODO.md"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text(mine)
    (state / ".gitignore").symlink_to("nowhere")
    told = run("init").stdout.splitlines()
    assert "kept  .swissarmyhammer/workflows/hello.yaml" in told
    assert "kept  .swissarmyhammer/workspaces/first/TODO.md" in told
    assert "made  .swissarmyhammer/workspaces/first/INSTRUCTIONS.md" in told
    assert (state / "config.yaml").read_text() == (state / "workspaces/first/TODO.md").read_text() == mine
    assert not (state / "nowhere").exists()


def test_the_settings_are_all_there_as_comments_that_hold_when_they_are_taken_away(
    run: Callable[..., Run], state: Path
) -> None:
    run("init")
    text = (state / "config.yaml").read_text()
    assert yaml.safe_load(text) is None
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    defaults = shown(run)
    kept = [line for line in lines if line.startswith(("  ", *(f"{name}:" for name in defaults)))]
    written = yaml.safe_load("\n".join(kept))
    assert list(written) == list(defaults)
    (state / "config.yaml").write_text("\n".join(kept) + "\n")
    settings = shown(run)
    assert {one["from"] for one in settings.values()} == {str(state / "config.yaml")}
    values = [{name: one["value"] for name, one in found.items() if name != "notify"} for found in (settings, defaults)]
    assert values[0] == values[1]
    assert [channel["type"] for channel in written["notify"]] == ["desktop", "ntfy", "webhook", "command"]


def shown(run: Callable[..., Run], **environment: str) -> dict[str, Any]:
    """Every setting as `config show` has it."""
    found = run("config", "show", "--json", **environment)
    assert found.returncode == 0, found
    settings: dict[str, Any] = json.loads(found.stdout)["settings"]
    return settings


def test_git_gets_what_people_write_and_nothing_else(run: Callable[..., Run], state: Path) -> None:
    subprocess.run(["git", "init", "-q", str(state.parent)], check=True)
    run("init")
    run("hello", "World", "-p", "pause=0")
    (state / "workspaces" / "first" / ".stop").touch()
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=state.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    first = ".swissarmyhammer/workspaces/first"
    assert set(listed.stdout.split()) == {
        ".swissarmyhammer/.gitignore",
        ".swissarmyhammer/config.yaml",
        ".swissarmyhammer/workflows/hello.yaml",
        f"{first}/.status.json",
        f"{first}/INSTRUCTIONS.md",
        f"{first}/TODO.md",
    }


def test_a_home_directory_is_no_project(tmp_path: Path, run: Callable[..., Run]) -> None:
    found = run("--project", str(tmp_path), "init", HOME=str(tmp_path))
    assert found.returncode == 2
    assert "home directory" in found.stderr
    assert not (tmp_path / ".swissarmyhammer").exists()


# --- config


def test_each_setting_is_shown_with_where_it_comes_from(run: Callable[..., Run], state: Path) -> None:
    state.mkdir()
    (state / "config.yaml").write_text("kill_after_s: 7\nhttp_token: abcdefghijklmnopqrst\n")
    settings = shown(run, SIDECAR_DEFAULT_AGENT="codex")
    assert len(settings) > 20
    assert settings["kill_after_s"] == {"value": 7, "from": str(state / "config.yaml")}
    assert settings["default_agent"] == {"value": "codex", "from": "SIDECAR_DEFAULT_AGENT"}
    assert settings["watcher"] == {"value": "auto", "from": "default"}
    assert settings["http_token"]["value"] == "********"
    table = [line.split() for line in run("config", "show").stdout.splitlines()]
    assert ["kill_after_s", "7.0", ".swissarmyhammer/config.yaml"] in table
    assert ["watcher", "auto", "default"] in table


def test_the_files_are_named_also_where_they_are_broken_or_not_there(run: Callable[..., Run], state: Path) -> None:
    state.mkdir()
    (state / "config.yaml").write_text("kil_after_s: 7\n")
    assert run("config", "path").stdout.splitlines() == [
        f"project  {state}/config.yaml",
        f"user     {os.environ['HOME']}/.config/sidecar/config.yaml  (does not exist)",
    ]
    broken = run("config", "show")
    assert broken.returncode == 2
    assert "did you mean 'kill_after_s'?" in broken.stderr
