"""The wheel and the sdist, as somebody who installs them gets them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, CHECKOUT], check=True, capture_output=True
    )
    return out


def test_the_wheel_contains_every_built_in_workflow(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    workflows = [path.name for path in (CHECKOUT / "workflows").glob("*.y*ml")]
    assert workflows
    assert sorted(f"sidecar/builtin/workflows/{name}" for name in workflows) == sorted(
        name for name in names if name.startswith("sidecar/builtin/workflows/")
    )


def test_the_wheel_contains_every_built_in_prompt(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    prompts = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "sidecar/builtin/prompts").glob("*.md")}
    assert prompts
    assert prompts == {name for name in names if name.startswith("sidecar/builtin/prompts/")}


def test_the_wheel_contains_every_unit(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    units = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "systemd").rglob("*") if path.is_file()}
    assert units
    assert {f"sidecar/builtin/{unit}" for unit in units} == {
        n for n in names if n.startswith("sidecar/builtin/systemd/")
    }


def test_the_wheel_contains_the_package_and_nothing_of_the_checkout_besides(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"sidecar", "agent_sidecar"}
    sources = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "sidecar").rglob("*.py")}
    assert sources <= set(names)


def test_the_sdist_holds_what_a_packager_needs_to_build_and_test(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "requirements/dev.txt", "scripts/test"} <= names
    assert not any(name.startswith((".venv", ".git/")) for name in names)


def test_the_wheel_runs_in_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment)
    interpreter = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "--quiet", "--disable-pip-version-check"]
    run([*pip, "install", "--no-compile", "--require-hashes", "-r", str(CHECKOUT / "requirements" / "run.txt")])
    run([*pip, "install", "--no-compile", "--no-deps", str(next(built.glob("*.whl")))])
    run([*pip, "check"])
    workspace = tmp_path / "project" / ".swissarmyhammer" / "workspaces" / "my-task"
    workspace.mkdir(parents=True)
    for name in ("sidecar", "sah"):
        program = str(environment / "bin" / name)
        assert run([program, "--version"]).startswith("sidecar ")
        run([program, "--project", str(tmp_path / "project"), "stop", "my-task", "--reason", name])
        assert (workspace / ".stop").read_text().startswith(f"{name}\n")


def run(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
