"""Every command in the documentation is run, in order, as a newcomer would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = ["README.md", *(f"docs/{name}.md" for name in ("signals", "language", "agents", "mcp", "operations"))]
OUTPUTS = ("Workspace not found", "tidy: ")  # how the blocks begin that show what is printed
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Typed(NamedTuple):
    """What came of the commands of a document."""

    document: str
    code: int
    stdout: str
    stderr: str


def blocks(document: str, language: str) -> list[str]:
    text = (CHECKOUT / document).read_text()
    return [body for found, body in BLOCK.findall(text) if found == language]


def is_about_the_checkout(block: str) -> bool:
    """Commands on the checkout itself: what they do is the subject of test_scripts.py and test_package.py."""
    return "./scripts/" in block or "pipx install" in block


@pytest.fixture(scope="module", params=DOCUMENTS)
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Typed:
    """All blocks of a document, typed into one shell of a newcomer."""
    document: str = request.param
    home = tmp_path_factory.mktemp("newcomer")
    project = home / "project"
    (project / ".swissarmyhammer" / "workspaces" / "my-task").mkdir(parents=True)  # for the README's first two lines
    lines = "\n".join(block for block in blocks(document, "sh") if not is_about_the_checkout(block))
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["sh", "-eu"], input=lines, cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    return Typed(document, done.returncode, done.stdout, done.stderr)


def test_every_command_in_the_documentation_works(typed: Typed) -> None:
    assert typed.code == 0, typed.stderr


def test_what_the_documentation_shows_is_what_is_printed(typed: Typed) -> None:
    shown = [block for block in blocks(typed.document, "text") if block.startswith(OUTPUTS)]
    for block in shown:
        assert block in typed.stdout + typed.stderr


def test_some_outputs_are_shown() -> None:
    shown = [block for document in DOCUMENTS for block in blocks(document, "text") if block.startswith(OUTPUTS)]
    assert len(shown) == len(OUTPUTS)


def test_every_page_of_the_documentation_is_run_and_linked() -> None:
    pages = {f"docs/{path.name}" for path in (CHECKOUT / "docs").glob("*.md")}
    assert pages <= set(DOCUMENTS)
    text = (CHECKOUT / "README.md").read_text()
    assert [page for page in pages if f"({page})" not in text] == []


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
