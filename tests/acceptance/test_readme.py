"""Every command in the documentation is run, in order, as a newcomer would type it; every workflow to its end.

The projects are git's, and the agent is a script: an example that does not end, or does something else, costs money.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

CHECKOUT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    *(f"docs/{name}.md" for name in ("signals", "language", "reference", "agents", "mcp", "operations", "events")),
    "docs/architecture.md",
    *(f"docs/tutorial-{name}.md" for name in ("loop", "review", "approval")),
]
OUTPUTS = ("Workspace not found", "tidy: ")  # how the blocks begin that show what is printed
WORKFLOW = re.compile(r"^cat > \.swissarmyhammer/workflows/([\w-]+)\.yaml <<'YAML'$", re.MULTILINE)
AGENT = Path(__file__).parent / "programs" / "scripted_agent.py"
DEADLINE_S = 300
CODE = {
    "big.py": "# TODO: one\nprint(1)\n# TODO: two\n" + "print(2)\n" * 100,
    "with space.py": "print(3)\n" * 50,
    "small.py": "# TODO: three\n",
}
# What comes of the code above: how many agents there are (a turn for each TODO, a review for each file that it was in),
# and what is said at the end, where the order of the reviews is open.
COMES_TO = {
    "todos": (5, {"0 TODOs left", "review.0 did it", "review.1 did it"}),
    "tidy": (3, {"3 files done"}),
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Typed(NamedTuple):
    """What came of the commands of a document, and where."""

    document: str
    project: Path
    environment: dict[str, str]
    code: int
    stdout: str
    stderr: str

    def sidecar(self, *arguments: str, code: int = 0) -> str:
        done = run(["sidecar", *arguments], self.project, self.environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


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
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "SIDECAR_DEFAULT_AGENT": "scripted",
    }
    agent = {"description": "", "adapter": "command", "command": [sys.executable, str(AGENT)], "prompt_via": "stdin"}
    (home / ".swissarmyhammer" / "agents").mkdir(parents=True)
    (home / ".swissarmyhammer" / "agents" / "scripted.yaml").write_text(yaml.safe_dump(agent))
    (home / ".gitconfig").write_text("[user]\n  name = Newcomer\n  email = newcomer@example.org\n")
    lines = "\n".join(block for block in blocks(document, "sh") if not is_about_the_checkout(block))
    # The README and the tutorials make projects of their own; the README's first two lines need one that is there.
    own = re.search(r"^cd ~/([\w-]+)$", lines, re.MULTILINE)
    projects = [home / "project", *([home / own[1]] if own else [])]
    for project in projects:
        (project / ".swissarmyhammer" / "workspaces" / "my-task").mkdir(parents=True)
        for name, content in CODE.items():
            (project / name).write_text(content)
        committed(project, environment)
    done = run(["sh", "-eu"], projects[0], environment, input=lines)
    return Typed(document, projects[-1], environment, done.returncode, done.stdout, done.stderr)


def run(
    command: list[str], directory: Path, environment: dict[str, str], **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S, **more
    )


def committed(project: Path, environment: dict[str, str]) -> None:
    """All of it is git's, the files of sidecar that are to be shared, too."""
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "as it is"]):
        done = run(["git", *command], project, environment)
        assert done.returncode == 0, done.stderr


def test_every_command_in_the_documentation_works(typed: Typed) -> None:
    assert typed.code == 0, typed.stderr


def test_every_workflow_in_the_documentation_runs_to_its_end(typed: Typed) -> None:
    written = [name for block in blocks(typed.document, "sh") for name in WORKFLOW.findall(block)]
    ran = {one["workflow"] for one in json.loads(typed.sidecar("status", "--json"))["runs"] if one["ended_at"]}
    for name in written:
        if name not in ran:  # some are run by the document itself
            committed(typed.project, typed.environment)
            found = json.loads(typed.sidecar("flow", "run", name, "--json"))
            events = [json.loads(line) for line in typed.sidecar("logs", found["run_id"], "--json").splitlines()]
            agents = [one for one in events if one["kind"] == "agent_started" and one["data"]["name"] == "scripted"]
            (said,) = found["messages"]
            assert (found["status"], len(agents), set(said.split("; "))) == ("completed", *COMES_TO[name])


def test_every_part_of_a_workflow_or_of_the_settings_is_a_valid_one(typed: Typed) -> None:
    parts = [] if typed.document == "docs/reference.md" else blocks(typed.document, "yaml")  # see test_reference.py
    for number, block in enumerate(parts):
        if "notify" in yaml.safe_load(block):
            (typed.project / ".swissarmyhammer" / "config.yaml").write_text(block)
            assert "ntfy.sh" in typed.sidecar("config", "show")
            continue
        name = f"part-{number}"
        whole = block + "steps: [{type: shell_command, command: exit 3}]\n"
        (typed.project / ".swissarmyhammer" / "workflows" / f"{name}.yaml").write_text(whole)
        typed.sidecar("validate", name)
        found = json.loads(typed.sidecar("flow", "run", name, "--json", code=2))
        assert found["messages"] == ["Failed: the command ended with exit code 3"]


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
