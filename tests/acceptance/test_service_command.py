"""`sidecar service` where no service manager takes part: what it would write, and what systemd thinks of that.

What it does to a real systemd is the subject of tests/integration/systemd.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import call

UNITS = Path(__file__).parents[2] / "systemd"
SIDECAR = [sys.executable, "-m", "sidecar"]
# Of ten; the least that is left with agents that can work. A unit without any of it has 9.6.
MOST_EXPOSED = 39
with_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "a project"
    (root / ".swissarmyhammer").mkdir(parents=True)
    return root


@pytest.fixture(autouse=True)
def _alone(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the project, and the manager of whoever runs the tests is not to be found."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    monkeypatch.chdir(project)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return call("service", *arguments)


def escaped(path: Path) -> str:
    return str(path).strip("/").replace("-", "\\x2d").replace(" ", "\\x20").replace("/", "-")


@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_print_shows_the_unit_and_writes_nothing(scope: str, project: Path) -> None:
    before = sorted(Path(os.environ["HOME"]).rglob("*"))
    result = run("install", scope, "--print")
    assert result.returncode == 0
    assert "\nExecStart=:" in result.stdout
    assert result.stdout.splitlines()[0].startswith("# Written by `sidecar service install`")
    assert f"sidecar@{escaped(project)}.service would have this content" in result.stderr
    assert sorted(Path(os.environ["HOME"]).rglob("*")) == before
    person = [line for line in result.stdout.splitlines() if line.startswith("User=")]
    assert person == ([f"User={pwd.getpwuid(project.stat().st_uid).pw_name}"] if scope == "--system" else [])


def test_what_is_shown_to_be_typed_means_the_unit_when_a_shell_reads_it(project: Path) -> None:
    *_, start = run("install", "--user", "--print").stderr.splitlines()
    assert shlex.split(start)[-1] == f"sidecar@{escaped(project)}.service"
    unit = Path(os.environ["HOME"], ".config", "systemd", "user", f"sidecar@{escaped(project)}.service")
    unit.parent.mkdir(parents=True)
    unit.touch()
    shown = [shlex.split(line) for line in run("uninstall", "--user", "--print").stdout.splitlines()]
    assert ["rm", str(unit)] in shown


@with_systemd
@pytest.mark.parametrize("scope", ["--user", "--system"])
def test_systemd_has_nothing_to_say_against_what_is_written(scope: str, tmp_path: Path) -> None:
    unit = tmp_path / "sidecar@srv-app.service"
    unit.write_text(run("install", scope, "--print").stdout)
    assert verified(unit) == (0, "")


@with_systemd
@pytest.mark.parametrize(
    "name",
    sorted(str(path.relative_to(UNITS)) for kind in ("service", "path", "timer") for path in UNITS.rglob(f"*.{kind}")),
)
def test_systemd_has_nothing_to_say_against_any_unit(name: str) -> None:
    assert verified(UNITS / name) == (0, "")


@with_systemd
def test_systemd_would_say_something_against_a_wrong_one(tmp_path: Path) -> None:
    wrong = tmp_path / "sidecar@.service"
    wrong.write_text((UNITS / "sidecar@.service").read_text().replace("KillMode=", "KilMode="))
    code, told = verified(wrong)
    assert code != 0
    assert "KilMode" in told


def verified(unit: Path) -> tuple[int, str]:
    command = ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@with_systemd
def test_the_system_unit_is_hardened_as_far_as_agents_can_bear_it(tmp_path: Path) -> None:
    unit = tmp_path / "sidecar@.service"
    content = run("install", "--system", "--print").stdout
    # Any account but root's: a project that belongs to root is worse, and `install` says so.
    unit.write_text(re.sub("(?m)^User=.*", "User=daemon", content))
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    hardened = unit.read_text()
    for line in ("CapabilityBoundingSet=\n", "RestrictNamespaces=~cgroup\n"):
        unit.write_text(hardened.replace(line, ""))
        assert subprocess.run(command, capture_output=True, check=False).returncode != 0, line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has projects of root's")
def test_for_a_project_of_root_install_says_how_to_run_it_as_somebody_else(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "daemon")
    told = run("install", "--system", "--print").stderr
    again = f"--project {shlex.quote(str(project))} service install --system --run-as daemon"
    assert f"chown -R daemon: {shlex.quote(str(project))} && sidecar {again}" in told
    assert "agents of this service run as root" in told
    assert "as root" not in run("install", "--user", "--print").stderr
    shutil.chown(project, "daemon")
    assert "as root" not in run("install", "--system", "--print").stderr


def test_run_as_names_the_account_of_a_system_service_only(project: Path) -> None:
    done = run("install", "--system", "--print", "--run-as", "daemon")
    assert "\nUser=daemon\n" in done.stdout
    assert "as root" not in done.stderr
    for arguments in (["install", "--user", "--run-as", "daemon"], ["status", "--system", "--run-as", "daemon"]):
        refused = run(*arguments)
        assert (refused.returncode, "--run-as" in refused.stderr) == (2, True)
    refused = run("install", "--system", "--print", "--run-as", "nobody-of-that-name")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "'nobody-of-that-name' has no account here" in refused.stderr


@pytest.mark.skipif(sys.platform == "darwin", reason="launchd takes part there")
def test_without_a_manager_one_line_says_so_and_nothing_is_left() -> None:
    before = sorted(Path(os.environ["HOME"]).rglob("*"))
    result = run("install", "--user")
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "systemd does not run here" in result.stderr or "you have no service manager here" in result.stderr
    assert sorted(Path(os.environ["HOME"]).rglob("*")) == before


@pytest.fixture
def as_a_mac(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command as if this were macOS, with a launchctl that says yes to all but that something is running."""
    programs = tmp_path / "bin"
    programs.mkdir()
    launchctl = programs / "launchctl"
    launchctl.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/launchctl"\ntest "$1" != print\n')
    launchctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    known = "import sys, sysconfig, psutil; sysconfig.get_config_vars()"  # what Python has to know of this machine
    pretend = f"{known}; sys.platform = 'darwin'; from sidecar.__main__ import main; sys.exit(main())"

    def run_there(*arguments: str) -> str:
        command = [sys.executable, "-c", pretend, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    return run_there


def test_what_launchd_is_asked_to_do_and_no_word_of_systemd(as_a_mac: Callable[..., str], tmp_path: Path) -> None:
    told = as_a_mac("service", "install", "--user")
    (plist,) = Path(os.environ["HOME"], "Library", "LaunchAgents").iterdir()
    assert "runs, and will at every start of your session" in told
    assert "loginctl" not in told
    assert "systemd" not in told
    assert Path(os.environ["HOME"], "Library", "Logs", "sidecar").is_dir()
    asked = (tmp_path / "launchctl").read_text().splitlines()
    assert asked[-2:] == [f"enable gui/{os.getuid()}/{plist.stem}", f"bootstrap gui/{os.getuid()} {plist}"]


def test_on_a_mac_doctor_says_what_is_unproven_there(as_a_mac: Callable[..., str]) -> None:
    assert "sidecar is tested on Linux only" in as_a_mac("doctor")


def test_what_is_not_installed_has_no_status_and_needs_no_uninstall() -> None:
    for action in ("status", "logs"):
        result = run(action, "--user")
        assert (result.returncode, "is not installed; `sidecar service install`" in result.stdout) == (2, True)
    assert run("uninstall", "--user").returncode == 0


def test_one_cannot_ask_for_both_or_for_nothing() -> None:
    for arguments in (["install", "--user", "--system"], [], ["begin"]):
        result = run(*arguments)
        assert result.returncode == 2
        assert "usage: sidecar service" in result.stderr
