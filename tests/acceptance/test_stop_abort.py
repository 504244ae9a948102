"""`sidecar stop` and `sidecar abort` as a person has them: the installed program, its words, its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit import DEADLINE_S, SIDECAR, HeldRun, is_id, new_id, present, read_signal, until

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
SEED_LINES = """\
Stop signal sent to workspace: my-task
Workspace will stop after current iteration completes

To cancel, delete the .stop file:
  rm claude-iterate/workspaces/my-task/.stop
"""
NOTHING_RUNS = "\nNo run is open there: the next run will be stopped before its first step\n"

Done = subprocess.CompletedProcess[str]


def run(*arguments: str | bytes, cwd: Path, program: str = SIDECAR, **environment: str) -> Done:
    return subprocess.run(
        [program, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=DEADLINE_S,
        check=False,
    )


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [SIDECAR, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started.append(process)
    return process


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    while started:
        with started.pop() as process:
            process.kill()


def succeeded(done: Done) -> str:
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def failed(done: Done, code: int = 1, *, lines: int = 1) -> str:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert len(done.stderr.splitlines()) == lines, done.stderr
    return done.stderr


def misused(done: Done) -> str:
    """Bad usage: what was wrong, and how it is meant."""
    message = failed(done, 2, lines=2)
    assert message.splitlines()[1].startswith("usage: sidecar ")
    return message


def everything_below(directory: Path) -> set[str]:
    return {os.path.join(path, name) for path, names, more in os.walk(directory) for name in [*names, *more]}


def no_receipt(directory: Path, kind: str) -> dict[str, Any]:
    """What `--wait --json` tells of the signal there while no owner has said what became of it."""
    found = read_signal(directory, kind)
    return {"signal": kind, "signal_id": found.signal_id, "path": str(found.path), "state": None, "runs": []}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = Path(os.path.realpath(tmp_path)) / "project"
    (project / ".swissarmyhammer").mkdir(parents=True)
    (project / "claude-iterate" / "workspaces" / "my-task").mkdir(parents=True)
    return project


@pytest.fixture
def workspace(project: Path) -> Path:
    return project / "claude-iterate" / "workspaces" / "my-task"


# What is printed and where it is written.


def test_stop_prints_the_seeds_lines_and_writes_the_file(project: Path, workspace: Path) -> None:
    """Seed 002: what `stop` prints, word for word."""
    with HeldRun(project, workspace):
        assert succeeded(run("stop", "my-task", cwd=project)) == SEED_LINES
    found = read_signal(workspace, "stop")
    assert found.reason == "no reason given"
    assert is_id(found.trailers["Signal-Id"])
    assert found.trailers.keys() == {"Signal-Id", "Requested-At", "Requested-By"}
    assert os.listdir(workspace) == [".stop"]


def test_where_nothing_is_running_stop_says_that_the_next_run_will_be_stopped(project: Path) -> None:
    with HeldRun(project, project / "another-workspace"):
        assert succeeded(run("stop", "my-task", cwd=project)) == SEED_LINES + NOTHING_RUNS


def test_the_line_to_cancel_does_it(project: Path, workspace: Path) -> None:
    for cwd in (project, workspace, project / ".swissarmyhammer"):
        command = succeeded(run("stop", "my-task", cwd=cwd)).splitlines()[4]
        subprocess.run(["sh", "-c", command], cwd=cwd, check=True)
        assert os.listdir(workspace) == []


@pytest.mark.parametrize("name", [b"it's; a $(project)", "prøject".encode(), b"pro\xffject", b"pro ject\n"])
def test_the_line_to_cancel_can_be_pasted_whatever_the_project_is_called(tmp_path: Path, name: bytes) -> None:
    project = Path(os.fsdecode(os.path.join(os.path.realpath(os.fsencode(tmp_path)), name)))
    workspace = project / ".swissarmyhammer" / "workspaces" / "w"
    workspace.mkdir(parents=True)
    told = succeeded(run("stop", "w", "--project", str(project), cwd=tmp_path))
    assert os.listdir(workspace) == [".stop"]
    command = told.partition("file:\n")[2].partition("\n\nNo run")[0]
    subprocess.run([b"sh", b"-c", os.fsencode(command)], cwd=tmp_path, check=True)
    assert os.listdir(workspace) == []


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_a_terminal_that_cannot_show_a_character_does_not_deny_the_signal(tmp_path: Path, encoding: str) -> None:
    project = Path(os.fsdecode(os.fsencode(tmp_path) + b"/pr\xc3\xb8\xff"))
    project.mkdir()
    told = succeeded(run("abort", "--project", str(project), cwd=tmp_path, PYTHONIOENCODING=encoding))
    assert told.startswith("Abort signal sent to project: ")
    assert present(project / ".swissarmyhammer", "abort")


def test_the_project_is_found_from_a_subdirectory_by_option_and_by_variable(
    project: Path, workspace: Path, tmp_path: Path
) -> None:
    (project / "src" / "deep").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    calls: list[tuple[Path, list[str], dict[str, str]]] = [
        (project / "src" / "deep", ["stop", "my-task"], {}),
        (outside, ["--project", str(project), "stop", "my-task"], {}),
        (outside, [f"--project={project}", "stop", "my-task"], {}),
        (outside, ["stop", "my-task", "--project", "../project"], {}),
        (outside, ["stop", f"--project={project}", "my-task"], {}),
        (outside, ["stop", "my-task"], {"SIDECAR_PROJECT": str(project)}),
        (outside, ["stop", "--project", str(project), "my-task"], {"SIDECAR_PROJECT": str(outside)}),
    ]
    for cwd, arguments, environment in calls:
        succeeded(run(*arguments, cwd=cwd, **environment))
        (workspace / ".stop").unlink()
    assert os.listdir(outside) == []


def test_the_workspaces_directory_comes_from_environment_project_user_or_default(
    project: Path, workspace: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    user_file = home / ".config" / "sidecar" / "config.yaml"
    user_file.parent.mkdir(parents=True)
    for name in ("of-user", "of-project", "of-environment", "of parser"):
        (project / name / "my-task").mkdir(parents=True)

    def stopped(**environment: str) -> str:
        succeeded(run("stop", "my-task", cwd=project, HOME=str(home), **environment))
        (found,) = project.rglob(".stop")
        found.unlink()
        return str(found.parent.parent.relative_to(project))

    assert stopped() == "claude-iterate/workspaces"
    user_file.write_text("workspaces_dir: of-user\n", encoding="utf-8")
    assert stopped() == "of-user"
    (project / ".swissarmyhammer" / "config.yaml").write_text("workspaces_dir: of-project # mine\n", encoding="utf-8")
    assert stopped() == "of-project"
    (project / ".swissarmyhammer" / "config.yaml").write_text("workspaces_dir: 'of parser'\n", encoding="utf-8")
    assert stopped() == "of parser"
    assert stopped(SIDECAR_WORKSPACES_DIR="of-environment") == "of-environment"


def test_without_claude_iterate_the_workspaces_are_below_the_state_directory(tmp_path: Path) -> None:
    workspace = tmp_path / ".swissarmyhammer" / "workspaces" / "w"
    workspace.mkdir(parents=True)
    assert "  rm .swissarmyhammer/workspaces/w/.stop\n" in succeeded(run("stop", "w", cwd=tmp_path))
    assert os.listdir(workspace) == [".stop"]


def test_stop_all_and_abort_write_to_the_project(project: Path) -> None:
    told = succeeded(run("stop", "--all", "--reason", "maintenance", cwd=project))
    assert told.startswith(f"Stop signal sent to project: {project}\nEvery run of the project will stop after current ")
    assert read_signal(project / ".swissarmyhammer", "stop").reason == "maintenance"
    told = succeeded(run("abort", "Tests are red on main", cwd=project))
    assert told.startswith(f"Abort signal sent to project: {project}\nNo run is open there\n")
    assert "  rm .swissarmyhammer/.abort\n" in told
    assert read_signal(project / ".swissarmyhammer", "abort").reason == "Tests are red on main"


def test_abort_names_the_runs_that_it_ends(project: Path, workspace: Path) -> None:
    run_id = new_id()
    with HeldRun(project, workspace, run_id):
        for target in ([], ["--workspace", "my-task"], ["--run", run_id]):
            told = succeeded(run("abort", *target, cwd=project))
            assert f"Ending now, with every agent and command: {run_id}\n" in told
    assert read_signal(workspace, "abort").reason == "Unknown abort reason"


def test_the_first_signal_makes_the_projects_directory(tmp_path: Path) -> None:
    succeeded(run("abort", cwd=tmp_path))
    assert everything_below(tmp_path) == {f"{tmp_path}/.swissarmyhammer", f"{tmp_path}/.swissarmyhammer/.abort"}


def test_one_run_can_be_stopped_and_aborted(project: Path) -> None:
    run_id = new_id()
    directory = project / ".swissarmyhammer" / "runs" / run_id
    HeldRun(project, run_id=run_id).release()
    told = succeeded(run("stop", "--run", run_id, cwd=project))
    assert told.startswith(f"Stop signal sent to run: {run_id}\nRun will stop after current iteration completes\n")
    assert f"No process executes {run_id} now: it is stopped before the next step\n" in told
    succeeded(run("abort", "enough", f"--run={run_id}", cwd=project))
    assert read_signal(directory, "stop").trailers["Run"] == run_id
    found = read_signal(directory, "abort")
    assert (found.trailers["Run"], found.reason) == (run_id, "enough")


@pytest.mark.parametrize("kind", ["stop", "abort"])
def test_a_run_that_has_ended_takes_no_more_signals(project: Path, kind: str) -> None:
    held = HeldRun(project)
    held.end()
    run_id = held.run_id
    before = everything_below(project)
    done = run(kind, "--run", run_id, cwd=project)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"run {run_id} has ended, and takes no more signals; `sidecar status {run_id}` says how\n"
    assert everything_below(project) == before


def test_a_timeout_is_passed_on(project: Path, workspace: Path) -> None:
    succeeded(run("stop", "my-task", "--timeout", "300", cwd=project))
    assert read_signal(workspace, "stop").trailers["Timeout"] == "300"
    assert "\nTimeout: 300\n" in (workspace / ".stop").read_text(encoding="utf-8")
    succeeded(run("stop", "my-task", "--timeout=0.5", cwd=project))
    assert read_signal(workspace, "stop").trailers["Timeout"] == "0.5"


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("two\nlines\n\nand a paragraph", "two\nlines\n\nand a paragraph"),
        ("why\n\nRun: 01JCAAAAAAAAAAAAAAAAAAAAAA", "why\n\nRun: 01JCAAAAAAAAAAAAAAAAAAAAAA"),
        (b"caf\xe9", "caf�"),
        ("", "no reason given"),
        ("--all", "--all"),
    ],
)
def test_a_reason_arrives_as_it_was_given(project: Path, workspace: Path, argument: str | bytes, reason: str) -> None:
    succeeded(run("stop", "my-task", "--reason", argument, cwd=project))
    found = read_signal(workspace, "stop")
    assert (found.reason, found.trailers.get("Run")) == (reason, None)
    assert "Signal-Id" in found.trailers


def test_words_behind_two_dashes_are_no_options(project: Path) -> None:
    succeeded(run("abort", "--", "--help me", cwd=project))
    assert read_signal(project / ".swissarmyhammer", "abort").reason == "--help me"


def test_a_later_signal_replaces_the_earlier_one(project: Path, workspace: Path) -> None:
    for reason in ("first", "second"):
        succeeded(run("stop", "my-task", "--reason", reason, cwd=project))
    assert read_signal(workspace, "stop").reason == "second"
    assert os.listdir(workspace) == [".stop"]


def test_json_is_one_object(project: Path, workspace: Path) -> None:
    run_id = new_id()
    with HeldRun(project, workspace, run_id):
        told = json.loads(succeeded(run("stop", "my-task", "--json", cwd=project)))
    assert told == {
        "signal": "stop",
        "signal_id": read_signal(workspace, "stop").signal_id,
        "path": str(workspace / ".stop"),
        "open_runs": [run_id],
        "live_runs": [run_id],
    }
    cancelled = json.loads(succeeded(run("stop", "my-task", "--cancel", "--json", cwd=project)))
    assert cancelled == {
        "signal": "stop",
        "signal_id": told["signal_id"],
        "path": str(workspace / ".stop"),
        "cancelled": True,
    }


def test_a_reader_who_has_gone_away_and_a_full_disk_behind_the_output_do_not_deny_the_signal(
    project: Path, workspace: Path
) -> None:
    for sink in ("| true", "> /dev/full", ">&-"):
        command = f'trap "" PIPE; {{ "$0" stop my-task; echo "code $?" >&2; }} {sink}'
        done = run("-c", command, SIDECAR, cwd=project, program="sh")
        assert done.stderr == "code 0\n"
        (workspace / ".stop").unlink()


# What is refused.


def test_a_missing_workspace_is_answered_with_the_names_that_exist_and_nothing_is_created(project: Path) -> None:
    (project / "claude-iterate" / "workspaces" / "other").mkdir()
    before = everything_below(project)
    for arguments in (["stop", "gone"], ["abort", "--workspace", "gone"], ["stop", "gone", "--cancel"]):
        assert failed(run(*arguments, cwd=project)) == "Workspace not found: gone (available: my-task, other)\n"
    assert everything_below(project) == before


@pytest.mark.parametrize(
    "name", ["../my-task", "..", ".", "a/b", "/etc", "my-task/", "", "a b", "new\nline", b"caf\xe9"]
)
def test_a_name_that_could_lead_elsewhere_is_refused(project: Path, name: str | bytes) -> None:
    before = everything_below(project)
    assert "not a workspace name" in failed(run("stop", name, cwd=project))
    assert everything_below(project) == before


def test_a_workspace_that_leads_out_of_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "claude-iterate" / "workspaces" / "escape").symlink_to(outside)
    assert "workspace escape is refused: it leads outside the project" in failed(run("stop", "escape", cwd=project))
    assert os.listdir(outside) == []


def test_a_run_that_does_not_exist_is_answered_with_those_that_do(project: Path) -> None:
    assert "no run has a directory in" in failed(run("stop", "--run", new_id(), cwd=project))
    run_id = new_id()
    (project / ".swissarmyhammer" / "runs" / run_id).mkdir(parents=True)
    for name in (new_id(), "../..", "my-task"):
        assert f"(available: {run_id})" in failed(run("abort", "--run", name, cwd=project))


def test_a_project_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert failed(run("abort", "--project", "gone", cwd=tmp_path)) == "--project: no such directory: gone\n"
    assert failed(run("abort", cwd=tmp_path, SIDECAR_PROJECT="gone")) == "SIDECAR_PROJECT: no such directory: gone\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stop"], "stop what?"),
        (["stop", "my-task", "other"], "too many words"),
        (["stop", "my-task", "--all"], "name one target"),
        (["stop", "my-task", "--run", "x"], "name one target"),
        (["stop", "--all", "--run", "x"], "name one target"),
        (["stop", "my-task", "--workspace", "my-task"], "name the workspace once"),
        (["stop", "my-task", "--force"], "unknown option --force"),
        (["stop", "my-task", "-x"], "unknown option -x"),
        (["stop", "my-task", "--all=yes"], "unknown option --all=yes"),
        (["stop", "my-task", "--reason"], "--reason needs a value"),
        (["stop", "--project"], "--project needs a value"),
        (["stop", "my-task", "--timeout", "soon"], "--timeout takes a number of seconds above 0, not 'soon'"),
        (["stop", "my-task", "--timeout", "0"], "--timeout takes a number"),
        (["stop", "my-task", "--timeout=-1"], "--timeout takes a number"),
        (["stop", "my-task", "--timeout", "nan"], "--timeout takes a number"),
        (["stop", "my-task", "--timeout", "inf"], "--timeout takes a number"),
        (["stop", "my-task", "--wait="], "--wait takes a number"),
        (["stop", "my-task", "--wait=x"], "--wait takes a number"),
        (["stop", "my-task", "--wait", "5"], "write --wait=5"),
        (["abort", "--wait", "5"], "write --wait=5"),
        (["stop", "my-task", "--cancel", "--wait"], "--cancel goes with no reason"),
        (["stop", "my-task", "--cancel", "--timeout", "5"], "--cancel goes with no reason"),
        (["abort", "why", "--cancel"], "--cancel goes with no reason"),
        (["abort", "--cancel", "--reason", "why"], "--cancel goes with no reason"),
        (["abort", "two", "words"], "put the reason in quotes"),
        (["abort", "--all"], "unknown option --all"),
        (["abort", "--timeout", "5"], "unknown option --timeout"),
        (["abort", "why", "--reason", "why"], "give the reason once"),
        (["abort", "--workspace", "my-task", "--run", "x"], "name one target"),
    ],
)
def test_bad_usage_is_told_in_two_lines_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in misused(run(*arguments, cwd=tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_reason_that_is_the_name_of_a_workspace_or_a_run_is_refused_with_a_hint(
    project: Path, workspace: Path
) -> None:
    run_id = new_id()
    (project / ".swissarmyhammer" / "runs" / run_id).mkdir(parents=True)
    before = everything_below(project)
    told = misused(run("abort", "my-task", cwd=project))
    assert "my-task is a workspace; write `sidecar abort --workspace my-task` to abort it" in told
    assert f"write `sidecar abort --run {run_id}` to abort it" in misused(run("abort", run_id, cwd=project))
    assert "my-task is a workspace" in misused(run("abort", "my-task", "--run", run_id, cwd=project))
    assert everything_below(project) == before
    succeeded(run("abort", "--reason", "my-task", cwd=project))
    assert read_signal(project / ".swissarmyhammer", "abort").reason == "my-task"
    assert os.listdir(workspace) == []


def test_settings_that_cannot_be_read_stop_nobody_from_aborting_the_project(project: Path) -> None:
    (project / ".swissarmyhammer" / "config.yaml").write_bytes(b"workspaces_dir: [\xff")
    assert "config.yaml" in failed(run("stop", "my-task", cwd=project))
    succeeded(run("abort", "word", cwd=project))
    assert read_signal(project / ".swissarmyhammer", "abort").reason == "word"


def test_a_settings_file_that_nobody_will_ever_write_to_keeps_nobody_waiting(project: Path, workspace: Path) -> None:
    os.mkfifo(project / ".swissarmyhammer" / "config.yaml")
    succeeded(run("stop", "my-task", cwd=project))
    assert present(workspace, "stop")
    succeeded(run("abort", "word", cwd=project))
    assert present(project / ".swissarmyhammer", "abort")


def test_a_signal_path_that_is_a_directory_is_one_line(project: Path, workspace: Path) -> None:
    (workspace / ".stop").mkdir()
    assert "it is a directory, which signals stop already" in failed(run("stop", "my-task", cwd=project))
    assert os.listdir(workspace) == [".stop"]


# Taking it back.


def test_cancel_takes_the_signal_back(project: Path, workspace: Path) -> None:
    succeeded(run("stop", "my-task", cwd=project))
    told = succeeded(run("stop", "my-task", "--cancel", cwd=project))
    assert told == "Stop signal cancelled for workspace: my-task\n"
    assert os.listdir(workspace) == []


def test_cancel_takes_back_what_others_wrote_too(project: Path) -> None:
    (project / ".swissarmyhammer" / ".abort").touch()
    assert "Abort signal cancelled for project" in succeeded(run("abort", "--cancel", cwd=project))
    assert os.listdir(project / ".swissarmyhammer") == []


def test_cancel_takes_back_what_a_dead_owner_was_about_to_remove(project: Path, workspace: Path) -> None:
    (workspace / ".stop.taken").touch()
    succeeded(run("stop", "my-task", "--cancel", cwd=project))
    assert os.listdir(workspace) == []


def test_cancel_of_a_stop_leaves_alone_what_a_dead_owner_left_of_an_abort(project: Path) -> None:
    state = project / ".swissarmyhammer"
    (state / ".stop").touch()
    (state / ".abort.taken").touch()
    succeeded(run("stop", "--all", "--cancel", cwd=project))
    assert os.listdir(state) == [".abort.taken"]


def test_cancel_where_nothing_stands_says_so_and_creates_nothing(tmp_path: Path) -> None:
    assert "nothing to cancel: there is no " in failed(run("abort", "--cancel", cwd=tmp_path))
    assert "nothing to cancel: there is no " in failed(run("stop", "--all", "--cancel", cwd=tmp_path))
    assert os.listdir(tmp_path) == []


def test_cancel_of_what_cannot_be_removed_is_one_line(project: Path, workspace: Path) -> None:
    (workspace / ".stop" / "inside").mkdir(parents=True)
    assert "Directory not empty" in failed(run("stop", "my-task", "--cancel", cwd=project))


@pytest.mark.parametrize("arguments", [["--cancel"], ["--cancel", "--json"], ["--json"], []])
def test_a_secret_behind_a_link_never_appears(project: Path, workspace: Path, arguments: list[str]) -> None:
    (project / "secret").write_text("hunter2\n\nSignal-Id: hunter2\n", encoding="utf-8")
    (workspace / ".stop").symlink_to(project / "secret")
    done = run("stop", "my-task", *arguments, cwd=project)
    assert done.returncode == 0
    assert "hunter2" not in done.stdout + done.stderr
    assert (project / "secret").read_text(encoding="utf-8").startswith("hunter2")


# Waiting.


class Owner(HeldRun):
    """Stands for a run's owner: holds its lock and answers a signal as an owner does."""

    def answer(self, kind: str, state: str = "applied", survivors: int = 0, *, remove: bool = True) -> None:
        assert self.workspace is not None
        path = self.workspace / f".{kind}"
        until(path.exists)
        self.write_receipt(kind, state, survivors)
        if remove:
            path.unlink()


@pytest.fixture
def owner(project: Path, workspace: Path) -> Iterator[Owner]:
    with Owner(project, workspace) as owner:
        yield owner


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


@pytest.mark.parametrize("limit", ["--wait", "--wait=60"])
def test_wait_returns_0_when_the_owner_has_applied_it_and_nothing_survived(
    project: Path, owner: Owner, limit: str
) -> None:
    waiting = start("stop", "my-task", limit, cwd=project)
    owner.answer("stop")
    code, out, err = finished(waiting)
    assert (code, err) == (0, "")
    assert out == (f"{SEED_LINES}Applied: run {owner.run_id} stopped\n1 process ended; none left\n")


def test_wait_shows_the_first_lines_before_it_waits(project: Path, owner: Owner) -> None:
    waiting = start("stop", "my-task", "--wait", cwd=project)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "Stop signal sent to workspace: my-task\n"
    owner.answer("stop")
    assert finished(waiting)[0] == 0


def test_wait_does_not_take_received_for_applied_nor_a_receipt_for_a_removed_file(
    project: Path, workspace: Path, owner: Owner
) -> None:
    waiting = start("abort", "--workspace", "my-task", "--wait=60", "--json", cwd=project)
    owner.answer("abort", "received", remove=False)
    owner.answer("abort", "applied", remove=False)
    # Still standing: another owner has yet to consume it.
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.3)
    (workspace / ".abort").unlink()
    code, out, err = finished(waiting)
    assert (code, err) == (0, "")
    assert json.loads(out)["state"] == "applied"


def test_wait_returns_4_when_something_survived(project: Path, owner: Owner) -> None:
    waiting = start("abort", "--workspace", "my-task", "--wait", cwd=project)
    owner.answer("abort", survivors=2)
    code, out, _ = finished(waiting)
    assert code == 4
    assert "; 2 still alive" in out


@pytest.mark.parametrize("state", ["refused", "expired", "cancelled"])
def test_wait_returns_4_when_it_was_not_applied(project: Path, owner: Owner, state: str) -> None:
    waiting = start("stop", "my-task", "--wait=60", cwd=project)
    owner.answer("stop", state)
    code, out, _ = finished(waiting)
    assert code == 4
    assert f"{state.capitalize()}: run {owner.run_id}" in out


@pytest.mark.parametrize(("kind", "verb"), [("stop", "stopped"), ("abort", "proven dead")])
def test_wait_returns_4_when_the_time_is_over_and_the_signal_still_stands(
    project: Path, workspace: Path, owner: Owner, kind: str, verb: str
) -> None:
    done = run(kind, "--workspace", "my-task", "--wait=0.05", cwd=project)
    assert done.returncode == 4
    assert done.stderr == f"not {verb} within 0.05 s: {owner.run_id}; the signal is still there\n"
    assert present(workspace, kind)


def test_wait_believes_only_the_receipt_of_its_own_signal(project: Path, workspace: Path, owner: Owner) -> None:
    (workspace / ".stop").touch()
    owner.answer("stop")  # somebody else's signal, applied
    waiting = start("stop", "my-task", "--wait=60", cwd=project)
    until((workspace / ".stop").exists)
    owner.end()
    code, _, err = finished(waiting)
    assert (code, err) == (4, "the run ended without a receipt; the signal is still there\n")


def test_wait_where_no_run_is_open_says_so_and_returns_0(project: Path, workspace: Path) -> None:
    told = succeeded(run("stop", "my-task", "--wait", cwd=project))
    assert told.endswith("No run is open in workspace my-task: the signal waits for the next run\n")
    assert present(workspace, "stop")
    told = succeeded(run("abort", "--wait", cwd=project))
    assert told.endswith(f"No run is open in project {project}: there is nothing to wait for\n")
    told = succeeded(run("stop", "my-task", "--wait", "--json", cwd=project))
    assert json.loads(told) == no_receipt(workspace, "stop")


@pytest.mark.parametrize("kind", ["stop", "abort"])
def test_wait_returns_4_when_the_owner_dies_without_a_receipt(project: Path, workspace: Path, kind: str) -> None:
    run_id = new_id()
    code = (
        "import pathlib, sys; from tests.kit import HeldRun;"
        "held = HeldRun(*map(pathlib.Path, sys.argv[1:3]), run_id=sys.argv[3]);"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(project), str(workspace), run_id]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as doomed:
        assert doomed.stdout is not None
        assert doomed.stdout.readline() == "held\n"
        waiting = start(kind, "--workspace", "my-task", "--wait=2", "--json", cwd=project)
        until(lambda: present(workspace, kind))
        os.kill(doomed.pid, signal.SIGKILL)
    exit_code, out, err = finished(waiting)
    assert exit_code == 4
    assert err.startswith(f"no process has executed {run_id} for ")
    assert err.endswith("; the signal is still there\n")
    assert json.loads(out) == no_receipt(workspace, kind)


def test_wait_returns_0_when_the_run_ended_by_itself_and_took_the_stop_along(
    project: Path, workspace: Path, owner: Owner
) -> None:
    waiting = start("stop", "my-task", "--wait=60", cwd=project)
    until(lambda: present(workspace, "stop"))
    (workspace / ".stop").unlink()
    owner.end()
    code, out, err = finished(waiting)
    assert (code, err) == (0, "")
    assert out.endswith("No run is open in workspace my-task: there is nothing to wait for\n")


def test_wait_ends_when_somebody_takes_the_signal_back(project: Path, workspace: Path, owner: Owner) -> None:
    waiting = start("stop", "my-task", "--wait", "--json", cwd=project)
    until((workspace / ".stop").exists)
    expected = no_receipt(workspace, "stop")
    succeeded(run("stop", "my-task", "--cancel", cwd=project))
    code, out, err = finished(waiting)
    assert json.loads(out) == expected
    assert (code, err) == (4, f"the signal was cancelled or replaced; open runs: {owner.run_id}\n")


def test_ctrl_c_ends_the_waiting_and_not_the_signal(project: Path, workspace: Path, owner: Owner) -> None:
    waiting = start("stop", "my-task", "--wait", cwd=project)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "Stop signal sent to workspace: my-task\n"
    waiting.send_signal(signal.SIGINT)
    code, _, err = finished(waiting)
    assert (code, err) == (130, "no longer waiting; the signal is still there\n")
    assert present(workspace, "stop")


# Help.


@pytest.mark.parametrize("program", ["sidecar", "sah"])
def test_both_names_are_the_same_program(project: Path, program: str) -> None:
    path = str(Path(sys.executable).with_name(program))
    assert succeeded(run("--version", cwd=project, program=path)) == f"sidecar {version('agent-sidecar')}\n"
    assert succeeded(run("stop", "my-task", cwd=project, program=path)).startswith("Stop signal sent to workspace")


def test_python_m_sidecar_is_the_same_program(project: Path) -> None:
    told = succeeded(run("-m", "sidecar", "stop", "my-task", cwd=project, program=sys.executable))
    assert told == SEED_LINES + NOTHING_RUNS


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help_that_names_its_options_and_writes_nothing(tmp_path: Path, flag: str) -> None:
    told = succeeded(run(flag, cwd=tmp_path))
    assert all(word in told for word in ("usage: sidecar", "stop", "abort", "--project", "--version"))
    common = ["--run", "--reason", "--wait[=S]", "--cancel", "--json", "--project"]
    told = succeeded(run("stop", flag, cwd=tmp_path))
    assert told.startswith("usage: sidecar stop WORKSPACE | --run ID | --all")
    assert all(option in told for option in [*common, "--all", "--timeout", "--workspace"])
    assert max(map(len, told.splitlines())) < 80
    told = succeeded(run("abort", "why", flag, cwd=tmp_path))
    assert told.startswith("usage: sidecar abort [REASON")
    assert all(option in told for option in [*common, "--workspace"])
    assert max(map(len, told.splitlines())) < 80
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("arguments", [["--help"], ["stop", "--help"], ["abort", "--help"], ["--version"]])
def test_help_can_be_read_on_a_terminal_that_knows_ascii_only(tmp_path: Path, arguments: list[str]) -> None:
    told = succeeded(run(*arguments, cwd=tmp_path, PYTHONIOENCODING="ascii"))
    assert "sidecar" in told
    assert "\\u" not in told


def test_no_command_prints_the_help_and_an_unknown_one_is_bad_usage(tmp_path: Path) -> None:
    assert succeeded(run(cwd=tmp_path)) == succeeded(run("--help", cwd=tmp_path))
    done = run("frobnicate", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "frobnicate" in done.stderr
    assert run("--project", cwd=tmp_path).returncode == 2
