"""The lines of SECURITY.md that have no test nearer to their subject, and that each line has one at all."""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit import DEADLINE_S, SIDECAR, call, until

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
SOMEBODY = 65534  # nobody, on every Linux
SECRET = "sk-ant-0123456789-never-seen"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user, or give files away")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="sidecar-test-") as name:
        os.chmod(name, 0o755)
        yield Path(name).resolve()


@pytest.fixture
def project(place: Path) -> Path:
    (place / ".swissarmyhammer" / "workflows").mkdir(parents=True)
    return place


def workflow(project: Path, name: str, *steps: dict[str, Any]) -> None:
    text = yaml.safe_dump({"description": name, "steps": list(steps)})
    (project / ".swissarmyhammer" / "workflows" / f"{name}.yaml").write_text(text)


def sidecar(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return call(*arguments, cwd=project, **environment)


def given_away(path: Path) -> None:
    for directory, _, names in os.walk(path):
        for each in (directory, *(os.path.join(directory, name) for name in names)):
            os.chown(each, SOMEBODY, SOMEBODY)


# --- a project of another user


@pytest.fixture
def foreign(project: Path) -> Path:
    """A project of another user: root can make one, and to everybody else /tmp is one that is always there."""
    if os.geteuid() != 0:
        return Path("/tmp").resolve()
    workflow(project, "theirs", {"type": "shell_command", "command": "touch ran"})
    (project / ".swissarmyhammer" / "config.yaml").write_text("safe_projects: ['*']\nkill_after_s: 1\n")
    given_away(project)
    return project


@pytest.mark.parametrize(
    "command",
    [
        ["flow", "run", "theirs"],
        ["flow", "run", "theirs", "--detach"],
        ["agent", "run", "command", "prompt", "-p", 'command=["touch", "ran"]'],
        ["daemon"],
        ["serve"],
        ["config", "show"],
    ],
    ids=" ".join,
)
def test_nothing_is_started_in_a_project_of_another_user(foreign: Path, command: list[str]) -> None:
    done = sidecar(foreign, "--project", str(foreign), *command)
    assert done.returncode == 2, done
    assert done.stderr.count("\n") == 1
    assert f"{foreign} belongs to another user" in done.stderr
    assert f"SIDECAR_SAFE_PROJECTS={foreign}" in done.stderr
    assert not (foreign / "ran").exists()


def test_doctor_looks_at_nothing_else_in_a_project_of_another_user(foreign: Path) -> None:
    done = sidecar(foreign, "--project", str(foreign), "doctor")
    assert done.returncode == 1
    assert "belongs to another user" in done.stdout
    assert "agents" not in done.stdout


@needs_root
def test_the_journal_of_another_user_is_not_even_opened(project: Path) -> None:
    (project / ".swissarmyhammer" / "sidecar.db").write_bytes(b"whatever they put there")
    given_away(project)
    done = sidecar(project, "status")
    assert done.returncode == 2
    assert "belongs to another user" in done.stderr


def test_a_project_is_safe_when_the_person_says_so_and_not_when_it_says_so_itself(foreign: Path) -> None:
    def refused(**environment: str) -> bool:
        done = sidecar(foreign, "--project", str(foreign), "config", "show", **environment)
        assert done.returncode in (0, 2), done
        assert ("belongs to another user" in done.stderr) is (done.returncode == 2)
        return done.returncode == 2

    assert refused()
    for safe in (str(foreign), f"/elsewhere,{foreign}/", "*"):
        assert not refused(SIDECAR_SAFE_PROJECTS=safe)
    assert refused(SIDECAR_SAFE_PROJECTS=str(foreign.parent) + "/elsewhere")
    own = Path(os.environ["HOME"], ".config", "sidecar", "config.yaml")
    own.parent.mkdir(parents=True)
    own.write_text(f"safe_projects: [{foreign}]\n")
    assert not refused()


@needs_root
@pytest.mark.parametrize("name", [".swissarmyhammer", ".aromcp"])
def test_a_directory_that_another_user_put_into_the_project_makes_it_theirs(project: Path, name: str) -> None:
    (project / name).mkdir(exist_ok=True)
    assert sidecar(project, "config", "show").returncode == 0
    given_away(project / name)
    done = sidecar(project, "config", "show")
    assert done.returncode == 2
    assert f"/{name} belongs to another user" in done.stderr


@needs_root
def test_under_sudo_the_projects_of_who_called_it_are_as_good_as_roots(project: Path) -> None:
    given_away(project)
    assert sidecar(project, "config", "show", SUDO_UID=str(SOMEBODY)).returncode == 0
    done = sidecar(project, "config", "show", SUDO_UID="1")
    assert done.returncode == 2
    assert f"{project} belongs to another user" in done.stderr


@needs_root
def test_another_users_runs_can_be_stopped_by_who_may_write_there(project: Path) -> None:
    workspace = project / ".swissarmyhammer" / "workspaces" / "w"
    workspace.mkdir(parents=True)
    # No quick look tells what this says: the real parser is asked, and must not mind whose it is.
    (project / ".swissarmyhammer" / "config.yaml").write_text('"workspaces_dir": ".swissarmyhammer/workspaces"\n')
    given_away(project)
    assert sidecar(project, "stop", "w").returncode == 0
    assert (workspace / ".stop").exists()
    assert sidecar(project, "abort", "enough").returncode == 0
    assert (project / ".swissarmyhammer" / ".abort").exists()


# --- who can read what


@contextmanager
def daemon(project: Path) -> Iterator[None]:
    log = project / "daemon.log"
    with log.open("w") as file:
        # With no mask at all: what is private must not depend on it.
        command = ["sh", "-c", 'umask 000; exec "$0" daemon', SIDECAR]
        process = subprocess.Popen(command, cwd=project, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        until(lambda: "is process" in log.read_text())
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)


def sockets(project: Path) -> list[Path]:
    return [path for path in (project / ".swissarmyhammer").rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]


def test_what_a_run_leaves_can_be_read_by_its_user_alone(project: Path) -> None:
    workflow(project, "w", {"type": "shell_command", "command": "echo said; until [ -e go ]; do sleep 0.02; done"})
    own = project / ".swissarmyhammer"
    with daemon(project):
        assert sidecar(project, "flow", "run", "w", "--detach").returncode == 0
        until(lambda: any(path.stat().st_size for path in own.glob("runs/*/agents/*.log")))
        found = {*sockets(project), *own.glob("sidecar.db*"), *own.rglob("*.log")}
        modes = {str(path.relative_to(own)): oct(stat.S_IMODE(path.lstat().st_mode)) for path in found}
        (project / "go").touch()
    assert set(modes.values()) == {"0o600"}, modes
    names = {re.sub(r"[0-9A-Z]{26}", "RUN", name) for name in modes}
    assert names >= {"sidecar.sock", "handover.sock", "runs/RUN/mcp.sock", "sidecar.db", "sidecar.db-wal"}
    assert names >= {"runs/RUN/run.log", "runs/RUN/agents/1.log"}


@needs_root
def test_another_user_reaches_no_socket(project: Path) -> None:
    code = f"""
import os, socket, sys
os.setgroups([]); os.setgid({SOMEBODY}); os.setuid({SOMEBODY})
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError:
        print("refused")
"""
    with daemon(project):
        paths = [str(path) for path in sockets(project)]
        for path in paths:
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(path)
        command = [sys.executable, "-c", code, *paths]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.stdout.split() == ["refused"] * 2, done


def test_with_any_umask_others_can_read_which_runs_are_open_and_what_became_of_a_signal(project: Path) -> None:
    """Else a stop by another user, who waits for it, would be told that nothing is running."""
    own = project / ".swissarmyhammer"
    loop = {"id": "b", "type": "shell_command", "command": "touch begun; sleep 0.05"}
    workflow(project, "w", {"id": "a", "type": "while", "condition": "true", "max_iterations": 10000, "body": [loop]})
    assert sidecar(project, "workspace", "init", "ws").returncode == 0
    command = ["sh", "-c", 'umask 077; exec "$0" flow run w --workspace ws', SIDECAR]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        until((project / "begun").exists)
        (directory,) = own.glob("runs/*")
        looked_at = [own / "open", *own.glob("open/*"), directory, directory / "open", directory / "lock"]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in looked_at if path.parent.name != "open"}
        command = ["sh", "-c", 'umask 077; exec "$0" stop ws --reason enough --timeout 300', SIDECAR]
        subprocess.run(command, cwd=project, capture_output=True, timeout=DEADLINE_S, check=True)
        assert run.wait(DEADLINE_S) == 0
    (receipt,) = own.rglob(".stop.receipt.json")
    modes[receipt.name] = stat.S_IMODE(receipt.stat().st_mode)
    assert {name: oct(mode) for name, mode in modes.items() if mode & 0o044 != 0o044} == {}


# --- links in the way


@pytest.mark.parametrize("name", ["runs/{run}/lock", "open/{run}", "runs/{run}/run.log"])
def test_a_link_in_the_place_of_a_file_of_ours_is_not_followed(project: Path, name: str) -> None:
    precious = project / "precious"
    precious.write_text("as it was, and long enough to be cut off\n")
    workflow(project, "w", {"id": "a", "type": "shell_command", "command": "test -e go"})
    assert sidecar(project, "flow", "run", "w").returncode == 2
    (run_id,) = os.listdir(project / ".swissarmyhammer" / "runs")
    (project / "go").touch()
    path = project / ".swissarmyhammer" / name.format(run=run_id)
    path.unlink(missing_ok=True)
    path.symlink_to(precious)
    done = sidecar(project, "resume", run_id)
    if name.endswith("run.log"):  # it does without
        assert done.returncode == 0, done
    else:
        assert done.returncode == 2, done
        assert "symbolic" in done.stderr
    assert precious.read_text() == "as it was, and long enough to be cut off\n"


# --- code and secrets


def test_with_any_umask_nobody_else_can_write_what_is_made_here(project: Path) -> None:
    workflow(project, "w", {"id": "a", "type": "shell_command", "command": "echo hi"})
    before = set(project.rglob("*"))

    def done(*arguments: str) -> None:
        command = ["sh", "-c", 'umask 000; exec "$0" "$@"', SIDECAR, *arguments]
        subprocess.run(command, cwd=project, capture_output=True, timeout=DEADLINE_S, check=True)

    done("init")
    done("workspace", "init", "ws")
    done("flow", "run", "w", "--workspace", "ws")
    with daemon(project):
        done("flow", "run", "w", "--detach")
        done("stop", "ws")
        done("abort", "enough", "--workspace", "ws")
        made = {path: path.lstat().st_mode for path in (project / ".swissarmyhammer").rglob("*") if path not in before}
    assert {path.name for path in made} >= {"runs", "agents", "lock", "ws", ".stop", ".abort", "sidecar.sock"}
    assert [str(path) for path, mode in made.items() if mode & 0o022] == []
    assert {stat.S_IMODE(mode) for mode in made.values() if stat.S_ISSOCK(mode)} == {0o600}


def test_a_workflow_of_a_project_that_is_a_link_out_of_it_is_refused(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text("description: from elsewhere\nsteps: [{id: a, type: user_message, message: hi}]\n")
    link = project / ".swissarmyhammer" / "workflows" / "link.yaml"
    link.symlink_to(outside)
    workflow(project, "real", {"id": "a", "type": "user_message", "message": "hi"})
    (link.parent / "beside.yaml").symlink_to("real.yaml")
    own = tmp_path / "home" / ".swissarmyhammer" / "workflows"
    own.mkdir(parents=True)
    (own / "mine.yaml").symlink_to(outside)
    home = str(tmp_path / "home")
    why = f"link.yaml:1: a link that leads out of {link.parent}: put the file itself there"
    ways = (("flow", "run", "link"), ("flow", "link", "--dry-run"), ("graph", "link"), ("validate", "link"))
    for arguments in (*ways, ("validate", str(link)), ("graph", str(link))):
        refused = sidecar(project, *arguments, HOME=home)
        told = (refused.stderr + refused.stdout).splitlines()
        assert refused.returncode != 0
        assert why in told[0]
        assert "from elsewhere" not in refused.stdout
    listed = sidecar(project, "flow", "list", "--format", "json", HOME=home)
    assert {"real", "beside", "mine"} <= {one["name"] for one in yaml.safe_load(listed.stdout)["workflows"]}
    assert '"link"' not in listed.stdout
    assert why in listed.stderr
    for name in ("beside", "mine"):
        assert sidecar(project, "flow", "run", name, HOME=home).returncode == 0


def test_a_module_of_the_project_is_not_taken_for_one_of_ours(project: Path) -> None:
    for name in ("anyio", "yaml", "json", "quickjs", "sidecar"):
        (project / f"{name}.py").write_text(f"open({str(project / 'imported')!r}, 'a').write(__name__)\n")
    workflow(
        project,
        "w",
        {
            "type": "conditional",
            "condition": "{{ 1 < 2 }}",
            "then": [{"type": "shell_command", "command": "true"}],
        },
    )
    assert sidecar(project, "flow", "run", "w", "--detach").returncode == 0
    until(lambda: '"completed"' in sidecar(project, "status", "--json").stdout)
    assert not (project / "imported").exists()


def test_a_secret_that_is_printed_stays_out_of_logs_and_output(project: Path) -> None:
    workflow(project, "w", {"type": "shell_command", "command": 'echo "it is $ANTHROPIC_API_KEY"; exit 3'})
    done = sidecar(project, "flow", "run", "w", ANTHROPIC_API_KEY=SECRET)
    assert done.returncode == 2
    (log,) = (project / ".swissarmyhammer").glob("runs/*/agents/*.log")
    assert "it is ********" in log.read_text()
    told = [done.stdout, done.stderr]
    told += [sidecar(project, *words).stdout for words in (("status", "--json"), ("logs", log.parts[-3], "--json"))]
    assert all(SECRET not in text for text in told), told
    for path in (project / ".swissarmyhammer").rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


# --- the document


def test_each_line_of_the_document_names_tests_that_exist() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text()
    rows = [row for row in re.findall(r"(?m)^\|(.+)\|$", text) if not set(row) <= set("-| ") and "| test" not in row]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`(tests/\S+\.py)::(\w+)`", row)
        assert named, f"no test: {row}"
        for path, name in named:
            tree = ast.parse((REPOSITORY / path).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
