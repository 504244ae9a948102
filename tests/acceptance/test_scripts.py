"""The checkout's own scripts, in a fresh copy of the checkout, as a newcomer has it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
INGREDIENTS = ("pyproject.toml", "README.md", "LICENSE", "requirements", "scripts", "sidecar", "workflows", "systemd")
# What it takes to install the checkout. That all of the requirements can be installed, test_package shows.
BUILDERS = ("editables", "hatchling", "packaging", "pathspec", "pip", "pluggy", "tomlkit", "trove-classifiers")


def run(checkout: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(checkout / "scripts" / "sidecar"), *arguments]
    return subprocess.run(command, cwd=cwd or checkout, env=environment(), capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    """This interpreter first on the PATH, so that the copy is tested with the Python that runs the tests."""
    interpreter = os.path.dirname(os.path.realpath(sys.executable))
    return {**os.environ, "PATH": f"{interpreter}:/usr/bin:/bin"}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that was never set up."""
    copy = tmp_path_factory.mktemp("copy") / "a checkout"  # with a space: people have those
    copy.mkdir()
    for name in INGREDIENTS:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    pins = copy / "requirements" / "run.txt"
    blocks = re.split(r"(?m)^(?=\w)", pins.read_text())
    pins.write_text("".join(block for block in blocks if block.partition("==")[0] in BUILDERS))
    return copy


@pytest.fixture
def ready(checkout: Path) -> Path:
    """The copy after a first start, whichever test caused it."""
    assert run(checkout, "--version").returncode == 0
    return checkout


def test_two_first_starts_at_once_make_one_environment_and_both_work(checkout: Path) -> None:
    command = [str(checkout / "scripts" / "sidecar"), "--version"]
    starts = [
        subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [(start.communicate(timeout=300), start.returncode) for start in starts]
    assert [code for _, code in results] == [0, 0], results
    assert all(out.startswith("sidecar ") for (out, _), _ in results)
    assert sum("setting up" in errors for (_, errors), _ in results) == 1


def test_the_next_start_is_silent_and_changes_nothing(ready: Path) -> None:
    before = (ready / ".venv" / ".ready-run").stat().st_mtime_ns
    result = run(ready, "--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert (ready / ".venv" / ".ready-run").stat().st_mtime_ns == before


def test_it_runs_from_anywhere_and_through_a_link(ready: Path, tmp_path: Path) -> None:
    (tmp_path / ".swissarmyhammer" / "workspaces" / "here").mkdir(parents=True)
    (tmp_path / "sc").symlink_to(ready / "scripts" / "sidecar")
    result = subprocess.run([tmp_path / "sc", "stop", "here"], cwd=tmp_path, env=environment(), check=False)
    assert result.returncode == 0
    assert (tmp_path / ".swissarmyhammer" / "workspaces" / "here" / ".stop").exists()


def test_a_search_path_for_cd_does_not_lead_it_astray(ready: Path, tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    elsewhere = {**environment(), "CDPATH": str(tmp_path)}
    command = ["scripts/sidecar", "--version"]
    result = subprocess.run(command, cwd=ready, env=elsewhere, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_environment_has_nothing_that_slows_every_start(ready: Path) -> None:
    hooks = [path.name for path in (ready / ".venv").rglob("*.pth")]
    assert hooks == ["_editable_impl_agent_sidecar.pth"]
    assert "import re\n" not in (ready / ".venv" / "bin" / "sidecar").read_text()


def test_changed_requirements_rebuild_it_once(ready: Path) -> None:
    with (ready / "requirements" / "run.txt").open("a") as file:
        file.write("# changed\n")
    (ready / ".venv" / "left-over").touch()
    assert "setting up" in run(ready, "--version").stderr
    assert not (ready / ".venv" / "left-over").exists()
    assert run(ready, "--version").stderr == ""


def test_without_a_suitable_python_one_line_says_so(checkout: Path, tmp_path: Path) -> None:
    for tool in ("sh", "dirname", "readlink"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    command = ["sh", str(checkout / "scripts" / "sidecar"), "--version"]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "sidecar needs Python 3.11 or newer, and found none on PATH. Install one and try again.\n"


def test_the_quick_tests_are_all_of_unit_and_some_of_the_others() -> None:
    """Also, that all tests of the list are there: pytest refuses it otherwise."""
    command = [str(CHECKOUT / "scripts" / "test"), "--quick", "--collect-only", "--quiet"]
    found = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    quick = {line.partition("::")[0] for line in found.stdout.splitlines() if "::" in line}
    unit = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "tests" / "unit").rglob("test_*.py")}
    assert unit < quick
    assert "tests/integration/engine/scenarios/test_scenarios.py" in quick
    assert {file.split("/")[1] for file in quick - unit} == {"integration", "acceptance"}


def test_the_help_of_the_tests_says_what_the_quick_ones_leave_out() -> None:
    found = subprocess.run([CHECKOUT / "scripts" / "test", "--help"], capture_output=True, text=True, check=True)
    assert "--quick" in found.stdout
    assert "leaves out: chaos" in found.stdout
