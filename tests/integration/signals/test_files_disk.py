"""Disks that are full or read-only, directories that are not ours, and limits: one line, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidecar.signals import files
from sidecar.signals.files import new_trailers

if TYPE_CHECKING:
    from collections.abc import Iterator

SIDECAR = str(Path(sys.executable).with_name("sidecar"))
SOMEBODY = 65534  # nobody, on every Linux
# As root, everything is allowed: the child becomes somebody else. It imports first, since the interpreter may
# stand where only root can read.
AS_SOMEBODY = f"""
import ctypes, os, sys
from sidecar import __main__
from sidecar.cli import stop_abort
from sidecar.signals import files

files.parse_timestamp("2026-11-15")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({SOMEBODY})
    os.setuid({SOMEBODY})
"""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="sidecar-test-") as name:
        os.chmod(name, 0o755)
        monkeypatch.setenv("HOME", f"{name}/home")
        yield Path(name)
        for path, _, _ in os.walk(name):
            os.chmod(path, 0o755)


@pytest.fixture
def workspace(place: Path) -> Path:
    workspace = place / ".swissarmyhammer" / "workspaces" / "w"
    workspace.mkdir(parents=True)
    return workspace


def as_somebody(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_SOMEBODY + code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def stop_as_somebody(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return as_somebody("sys.exit(__main__.main())", "stop", *arguments, cwd=cwd)


def assert_failed_in_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (done.returncode, done.stdout) == (1, ""), done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_a_directory_without_write_permission(place: Path, workspace: Path) -> None:
    workspace.chmod(0o555)
    assert_failed_in_one_line(stop_as_somebody(place, "w"), "cannot write", str(workspace), "Permission denied")
    assert os.listdir(workspace) == []


def test_a_project_without_write_permission(place: Path) -> None:
    place.chmod(0o555)
    done = stop_as_somebody(place, "--all")
    assert_failed_in_one_line(done, "cannot make", ".swissarmyhammer", "Permission denied")
    assert os.listdir(place) == []


def test_a_drop_box_that_may_be_written_to_but_not_listed(place: Path, workspace: Path) -> None:
    workspace.chmod(0o333)
    done = stop_as_somebody(place, "w", "--reason", "dropped")
    assert (done.returncode, done.stderr) == (0, "")
    workspace.chmod(0o755)
    assert os.listdir(workspace) == [".stop"]
    assert (workspace / ".stop").read_text(encoding="utf-8").startswith("dropped\n\n")


@pytest.mark.parametrize(("kind", "reason"), [("stop", "no reason given"), ("abort", "Unknown abort reason")])
def test_a_signal_that_may_not_be_read_signals_with_the_default_reason(
    place: Path, workspace: Path, kind: str, reason: str
) -> None:
    (workspace / f".{kind}").write_text("a secret", encoding="utf-8")
    (workspace / f".{kind}").chmod(0)
    workspace.chmod(0o777)
    code = f"signal = files.read(sys.argv[1], {kind!r}); print(signal.reason, files.clear(signal))"
    done = as_somebody(code, str(workspace), cwd=place)
    assert (done.stdout, done.stderr) == (f"{reason} True\n", "")
    assert os.listdir(workspace) == []


def test_a_directory_that_may_not_be_entered_holds_no_signal_and_raises_nothing(place: Path, workspace: Path) -> None:
    (workspace / ".stop").touch()
    workspace.chmod(0)
    code = "print(files.read(sys.argv[1], 'stop'), files.present(sys.argv[1] + '/.stop'), files.recover(sys.argv[1]))"
    done = as_somebody(code, str(workspace), cwd=place)
    assert (done.stdout, done.stderr) == ("None False None\n", "")


def test_a_signal_that_may_not_be_removed_is_reported_in_one_line(place: Path, workspace: Path) -> None:
    (workspace / ".stop").touch()
    workspace.chmod(0o555)
    assert_failed_in_one_line(stop_as_somebody(place, "w", "--cancel"), "cannot remove", "Permission denied")
    assert os.listdir(workspace) == [".stop"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs the files of two users, and only root can make them")
def test_a_newer_signal_of_another_user_survives_although_no_hard_link_of_it_may_be_made(
    place: Path, workspace: Path
) -> None:
    workspace.chmod(0o777)
    (workspace / ".stop").write_text("old", encoding="utf-8")
    code = """
old = files.read(sys.argv[1], "stop")
print("looked", flush=True)
sys.stdin.readline()
print(files.clear(old), flush=True)
"""
    command = [sys.executable, "-c", AS_SOMEBODY + code, str(workspace)]
    with subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "looked\n"
        files.write(str(workspace), "stop", "new", new_trailers())
        assert owner.communicate("go on\n")[0] == "False\n"
    assert os.listdir(workspace) == [".stop"]
    assert (workspace / ".stop").read_text(encoding="utf-8").startswith("new\n\n")


def test_a_limit_on_the_size_of_files(place: Path, workspace: Path) -> None:
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", SIDECAR, "stop", "w", "--reason", "x" * 5000]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert_failed_in_one_line(done, "cannot write", "File too large")
    assert os.listdir(workspace) == []


def test_a_former_signal_stands_when_the_new_one_cannot_be_written(place: Path, workspace: Path) -> None:
    (workspace / ".stop").write_text("former", encoding="utf-8")
    command = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", SIDECAR, "stop", "w"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert os.listdir(workspace) == [".stop"]
    assert (workspace / ".stop").read_text(encoding="utf-8") == "former"


def in_own_mounts(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount things which nobody else sees."""
    if (
        not shutil.which("unshare")
        or subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no user and mount namespaces on this machine")
    command = ["unshare", "-rm", "sh", "-eu", "-c", script, "sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


TRY_AND_LIST = """
cd "$1"
code=0
"$2" stop w --reason because || code=$?
ls -A .swissarmyhammer/workspaces/w >&2
exit $code
"""
FULL = """
mount -t tmpfs -o size=64k,nr_inodes=100 none "$1"
mkdir -p "$1/.swissarmyhammer/workspaces/w"
dd if=/dev/zero of="$1/ballast" bs=4k 2>/dev/null || true
"""
NO_INODES = """
mount -t tmpfs -o size=64k,nr_inodes=5 none "$1"
mkdir -p "$1/.swissarmyhammer/workspaces/w"
touch "$1/ballast"
"""
READ_ONLY = """
mount -t tmpfs none "$1"
mkdir -p "$1/.swissarmyhammer/workspaces/w"
mount -o remount,bind,ro "$1"
"""


@pytest.mark.parametrize(
    ("prepare", "error"),
    [(FULL, "No space left on device"), (NO_INODES, "No space left on device"), (READ_ONLY, "Read-only file system")],
    ids=["full", "no inodes", "read-only"],
)
def test_a_disk_that_takes_nothing(place: Path, prepare: str, error: str) -> None:
    done = in_own_mounts(prepare + TRY_AND_LIST, str(place), SIDECAR)
    assert_failed_in_one_line(done, "cannot write", ".stop", error)
    # One line: the error. Had `ls` found a signal or a temporary file, it would stand there too.


def test_a_disk_with_room_takes_the_signal(place: Path) -> None:
    roomy = FULL.replace("dd ", "# dd ")
    done = in_own_mounts(roomy + TRY_AND_LIST, str(place), SIDECAR)
    assert (done.returncode, done.stderr) == (0, ".stop\n"), done
