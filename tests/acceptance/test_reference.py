"""The reference is up to date with the models that check files, and its examples do what their first lines say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Project, call

CHECKOUT = Path(__file__).parents[2]
EXAMPLES = sorted((CHECKOUT / "docs" / "examples").glob("*.yaml"))
AGENT = Path(__file__).parent / "programs" / "scripted_agent.py"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A git project with all examples, a scripted agent, and sidecar itself as an MCP server."""
    root = tmp_path_factory.mktemp("reference")
    project = Project(root, SIDECAR_DEFAULT_AGENT="scripted", PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    shutil.copytree(CHECKOUT / "docs" / "examples", project.state / "workflows", dirs_exist_ok=True)
    project.agent("scripted", "", command=[sys.executable, str(AGENT)], prompt_via="stdin")
    (root / ".mcp.json").write_text(json.dumps({"mcpServers": {"sidecar": {"command": "sidecar", "args": ["serve"]}}}))
    (root / "src").mkdir()
    (root / "src" / "a.py").write_text("a = 1\nb = 2\n")
    (root / "src" / "b.py").write_text("c = 3\n")
    for words in (["init", "-q"], ["add", "src"]):
        subprocess.run(["git", *words], cwd=root, env=project.environment, check=True)
    daemon = project.daemon()
    yield project
    daemon.end()
    assert project.close() == []


def lines(example: Path, word: str) -> list[str]:
    """What the comments at the top of an example say."""
    mark = f"# {word}: "
    return [line.removeprefix(mark) for line in example.read_text().splitlines() if line.startswith(mark)]


@pytest.mark.anyio
async def test_every_example_prints_what_it_says(project: Project) -> None:
    found: dict[str, Any] = {}
    async with project.client("legacy") as client:
        for example in EXAMPLES:
            answered = await client.call_tool("flow", {"flow_name": example.stem})
            run = answered.structured_content
            assert run is not None
            for answer in lines(example, "answer"):
                resumed = {"workflow_id": run["run_id"], "answer": answer, "driver": "server"}
                await client.call_tool("workflow_resume", resumed)
                project.until_status(run["run_id"], "completed")
            found[example.stem] = project.data(run["run_id"], "message", "run_ended")
    told = {name: [one.get("text") or one.get("reason") for one in data] for name, data in found.items()}
    expected = {example.stem: lines(example, "prints") for example in EXAMPLES}
    assert {name: [text for text in told[name] if text in expected[name]] for name in told} == expected
    assert {name: data[-1]["status"] for name, data in found.items()} == dict.fromkeys(expected, "completed")


def test_every_step_type_has_an_example() -> None:
    schema = json.loads(call("schema").stdout)
    types = schema["$defs"]["Step"]["properties"]["type"]["enum"]
    assert sorted(types) == [example.stem for example in EXAMPLES]
    for example in EXAMPLES:
        assert f"type: {example.stem}" in example.read_text()


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/reference.py", "--check"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
