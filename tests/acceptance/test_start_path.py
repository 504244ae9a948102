"""What `sidecar stop` and `sidecar abort` import: next to nothing, so that they start about as fast as Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit import SIDECAR

OWN = {
    "sidecar",
    "sidecar.__main__",
    "sidecar.cli",
    "sidecar.cli.stop_abort",
    "sidecar.errors",
    "sidecar.layout",
    "sidecar.model",
    "sidecar.model.ulid",
    "sidecar.signals",
    "sidecar.signals.files",
    "sidecar.signals.run_lock",
    "sidecar.signals.targets",
}
# Each of these is compiled into the interpreter or a few lines long. A module that is missing here costs time at
# the moment when somebody wants something to stop: think twice before adding it.
STANDARD = {"__future__", "errno", "fcntl", "pwd"}


def imported(*command: str, cwd: Path) -> set[str]:
    """The modules that a Python command imports, from the interpreter's own account of it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *command], cwd=cwd, capture_output=True, text=True, timeout=60, check=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines[1:]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("w", "elsewhere"):
        (tmp_path / ".swissarmyhammer" / "workspaces" / name).mkdir(parents=True)
    run = tmp_path / ".swissarmyhammer" / "runs" / ("0" * 26)
    run.mkdir(parents=True)
    (run / "open").touch()
    return tmp_path


def beyond_bare_python(project: Path, *arguments: str) -> set[str]:
    return imported(SIDECAR, *arguments, cwd=project) - imported("-c", "pass", cwd=project)


@pytest.mark.parametrize(
    "arguments",
    [
        ["stop", "w"],
        ["stop", "w", "--reason", "why", "--timeout", "5"],
        ["stop", "--all"],
        ["stop", "--run", "0" * 26],
        ["abort"],
        ["abort", "why"],
        ["abort", "--workspace", "w"],
        ["--project", ".", "abort", "why"],
        ["stop", "--help"],
    ],
)
def test_stop_and_abort_import_this_and_no_more(project: Path, arguments: list[str]) -> None:
    (project / ".swissarmyhammer" / "config.yaml").write_text(
        "watcher: polling\nworkspaces_dir: .swissarmyhammer/workspaces # as ever\n", encoding="utf-8"
    )
    found = beyond_bare_python(project, *arguments)
    own = {name for name in found if name.partition(".")[0] == "sidecar"}
    assert own == OWN
    assert found - own <= STANDARD


def test_the_bare_interpreter_is_really_bare(project: Path) -> None:
    bare = imported("-c", "pass", cwd=project)
    assert not {"re", "json", "typing", "pathlib", "argparse", "yaml", "sidecar"} & bare


def test_yaml_is_imported_only_where_the_setting_needs_a_parser(project: Path) -> None:
    settings = project / ".swissarmyhammer" / "config.yaml"
    settings.write_text("workspaces_dir: '.swissarmyhammer/workspaces'\n", encoding="utf-8")
    found = beyond_bare_python(project, "stop", "w")
    assert {"yaml", "sidecar.config"} <= found
    assert "yaml" not in beyond_bare_python(project, "stop", "--all")
    settings.write_text("watcher: 'polling'\n", encoding="utf-8")
    assert "yaml" not in beyond_bare_python(project, "stop", "w")
    assert os.listdir(project / ".swissarmyhammer" / "workspaces" / "w") == [".stop"]


def test_json_is_imported_only_where_it_is_asked_for(project: Path) -> None:
    assert "json" not in beyond_bare_python(project, "stop", "w")
    assert "json" in beyond_bare_python(project, "stop", "w", "--json")
