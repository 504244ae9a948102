"""MCP clients that others wrote: the generic scenarios of the conformance suite, and the Inspector.

Optional (`scripts/test --real-clients`): they come from npm, with the node that they need, into a directory of the
test's own, or into SIDECAR_TEST_NPM_PREFIX, where a later run finds them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 120.0
INSTALL_S = 600.0
NODE = "node@22"
PACKAGES = ("@modelcontextprotocol/conformance", "@modelcontextprotocol/inspector")
SUITE, INSPECTOR = "conformance", "mcp-inspector"
# What any server can be asked. Those for prompts find theirs among the project's files.
GENERIC = [
    *("server-initialize", "ping", "logging-set-level", "completion-complete", "dns-rebinding-protection"),
    *("tools-list", "tools-call-error", "server-sse-multiple-streams"),
    *("resources-list", "resources-subscribe", "resources-unsubscribe"),
    *("prompts-list", "prompts-get-simple", "prompts-get-with-args"),
]
# What only a server can answer that was written for the suite: tools and resources of these very names, which give
# images, sound, samples of a model, or questions of a certain shape.
MADE_FOR_THE_SUITE = [
    *("tools-call-simple-text", "tools-call-image", "tools-call-audio", "tools-call-embedded-resource"),
    *("tools-call-mixed-content", "tools-call-with-logging", "tools-call-with-progress", "tools-call-sampling"),
    *("tools-call-elicitation", "elicitation-sep1034-defaults", "elicitation-sep1330-enums", "json-schema-2020-12"),
    *("server-sse-polling", "resources-read-text", "resources-read-binary", "resources-templates-read"),
    *("prompts-get-embedded-resource", "prompts-get-with-image"),
]
WORKFLOW = "description: Quick.\nsteps: [{id: a, type: shell_command, command: 'true'}]\n"
PROMPTS = {
    "test_simple_prompt": "---\ndescription: Simple.\n---\nThis is a simple prompt for testing.\n",
    "test_prompt_with_arguments": (
        "---\ndescription: With arguments.\nparameters: [{name: arg1, type: string}, {name: arg2, type: string}]\n---\n"
        "Prompt with arguments: arg1='{{ arg1 }}', arg2='{{ arg2 }}'\n"
    ),
}


@dataclass(frozen=True)
class Programs:
    """Where they are installed."""

    prefix: Path

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(self.prefix / "node_modules" / ".bin"), os.environ["PATH"]])
        return {**os.environ, "PATH": path}

    def run(self, name: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(self.prefix / "node_modules" / ".bin" / name), *arguments]
        return subprocess.run(
            command, cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    def are_there(self) -> bool:
        return all((self.prefix / "node_modules" / ".bin" / name).exists() for name in ("node", SUITE, INSPECTOR))

    def install(self) -> None:
        """First node: npm chooses versions of the others for the one that it runs on."""
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("no npm: conformance suite and Inspector cannot be installed")
        for packages in ((NODE,), PACKAGES):
            words = [npm, "install", "--prefix", str(self.prefix), "--no-audit", "--no-fund", *packages]
            try:
                done = subprocess.run(
                    words, env=self.environment, capture_output=True, text=True, timeout=INSTALL_S, check=False
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not install {packages} within {INSTALL_S:g} s")
            if done.returncode != 0:
                pytest.skip(f"npm cannot install {packages}: {done.stderr.strip().splitlines()[-1:]}")


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    if not request.config.getoption("--real-clients", default=False):
        pytest.skip("needs --real-clients")
    prefix = os.environ.get("SIDECAR_TEST_NPM_PREFIX")
    found = Programs(Path(prefix) if prefix else tmp_path_factory.mktemp("npm"))
    if not found.are_there():
        found.install()
    return found


@dataclass(frozen=True)
class Served:
    """A project with a daemon."""

    root: Path
    url: str


@pytest.fixture(scope="module")
def served(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("project")
    own = root / ".swissarmyhammer"
    for name in ("workflows", "prompts"):
        (own / name).mkdir(parents=True)
    (own / "workflows" / "quick.yaml").write_text(WORKFLOW)
    for name, text in PROMPTS.items():
        (own / "prompts" / f"{name}.md").write_text(text)
    path = root / "daemon.log"
    with path.open("w") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "sidecar", "daemon", "--http", "0"], cwd=root, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while "is process" not in path.read_text():
            assert daemon.poll() is None, path.read_text()
            assert time.monotonic() < deadline, path.read_text()
            time.sleep(0.05)
        (url,) = re.findall(r"MCP at ([^\s\"]+)", path.read_text())
        yield Served(root, url)
    finally:
        daemon.terminate()
        daemon.wait(DEADLINE_S)


@pytest.mark.parametrize("scenario", GENERIC)
def test_a_generic_scenario_of_the_conformance_suite_passes(programs: Programs, served: Served, scenario: str) -> None:
    done = programs.run(SUITE, "server", "--url", served.url, "--scenario", scenario, cwd=served.root)
    assert done.returncode == 0, done.stdout + done.stderr
    (counted,) = re.findall(r"Passed: (\d+)/(\d+), (\d+) failed", done.stdout)
    passed, of, failed = map(int, counted)
    assert (passed, failed) == (of, 0)
    assert of > 0


def test_no_scenario_of_the_suite_is_overlooked(programs: Programs) -> None:
    told = programs.run(SUITE, "list", "--server").stdout
    assert set(re.findall(r"^\s+- (\S+)", told, re.MULTILINE)) == {*GENERIC, *MADE_FOR_THE_SUITE}


def _inspected(programs: Programs, served: Served, *arguments: str) -> dict[str, Any]:
    """What the Inspector prints of a server that it starts itself."""
    server = (sys.executable, "-m", "sidecar", "serve")
    done = programs.run(INSPECTOR, "--cli", *server, *arguments, cwd=served.root)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_inspector_lists_and_calls_tools(programs: Programs, served: Served) -> None:
    tools = _inspected(programs, served, "--method", "tools/list")["tools"]
    assert {"flow", "abort", "workflow_get_next_step"} <= {tool["name"] for tool in tools}
    call = ("--method", "tools/call", "--tool-name", "flow", "--tool-arg", "flow_name=quick")
    assert _inspected(programs, served, *call)["structuredContent"]["status"] == "completed"


def test_the_inspector_reads_prompts_and_resources(programs: Programs, served: Served) -> None:
    prompts = _inspected(programs, served, "--method", "prompts/list")["prompts"]
    assert {"test_simple_prompt", "test_prompt_with_arguments"} <= {prompt["name"] for prompt in prompts}
    got = _inspected(programs, served, "--method", "prompts/get", "--prompt-name", "test_simple_prompt")
    assert "simple prompt" in got["messages"][0]["content"]["text"]
    assert "resources" in _inspected(programs, served, "--method", "resources/list")
    assert _inspected(programs, served, "--method", "resources/templates/list")["resourceTemplates"]
