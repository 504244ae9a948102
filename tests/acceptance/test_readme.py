"""Every command in the documentation is run, in order, as a newcomer would type it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: str, language: str) -> list[str]:
    text = (CHECKOUT / document).read_text()
    return [body for found, body in BLOCK.findall(text) if found == language]


def is_about_the_checkout(block: str) -> bool:
    """Commands on the checkout itself: what they do is the subject of test_scripts.py and test_package.py."""
    return "./scripts/" in block or "pipx install" in block


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All blocks of the README, typed into one shell."""
    home = tmp_path_factory.mktemp("newcomer")
    (home / ".swissarmyhammer" / "workspaces" / "my-task").mkdir(parents=True)  # for the first two lines
    project = home / "project"
    project.mkdir()
    shutil.copytree(home / ".swissarmyhammer", project / ".swissarmyhammer")
    typed = "\n".join(block for block in blocks("README.md", "sh") if not is_about_the_checkout(block))
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8"}
    return subprocess.run(
        ["sh", "-eu"], input=typed, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_every_command_in_the_readme_works(transcript: subprocess.CompletedProcess[str]) -> None:
    assert transcript.returncode == 0, transcript.stderr


def test_what_the_readme_shows_is_what_is_printed(transcript: subprocess.CompletedProcess[str]) -> None:
    printed = transcript.stdout + transcript.stderr
    output = ("Stop signal sent", "Workspace not found", "tidy: ")
    shown = [block for block in blocks("README.md", "text") if block.startswith(output)]
    assert len(shown) == len(output)
    for block in shown:
        assert block in printed


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_every_script_that_is_named_exists_and_can_be_run(document: str) -> None:
    named = set(re.findall(r"\./scripts/(\w+)", (CHECKOUT / document).read_text()))
    assert {"test", "sidecar"} & named
    for name in named:
        assert os.access(CHECKOUT / "scripts" / name, os.X_OK), name


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = next(block for block in blocks("README.md", "text") if block.startswith("sidecar/\n"))
    package = CHECKOUT / "sidecar"
    parts = [path for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    assert [path.name for path in parts if path.name not in tree and path.name != "__init__.py"] == []
    modules = {path.name for path in package.rglob("*.py")}
    assert set(re.findall(r"\w+\.py", tree)) <= modules
