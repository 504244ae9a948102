"""Which directory a signal goes to, and that no name leads out of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from sidecar import layout
from sidecar.errors import SignalError
from sidecar.model import ulid
from sidecar.signals import run_lock, targets

ROOT = "/project"
DEFAULT = "/project/.swissarmyhammer/workspaces"


@pytest.fixture
def project(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> FakeFilesystem:
    monkeypatch.setenv("HOME", "/home/me")
    fs.makedirs("/home/me")
    fs.makedirs(f"{DEFAULT}/my-task")
    return fs


def test_the_workspaces_directory_is_the_setting_of_project_user_or_environment(project: FakeFilesystem) -> None:
    assert targets.workspaces_directory(ROOT, {}) == DEFAULT
    project.makedirs("/project/claude-iterate/workspaces")
    assert targets.workspaces_directory(ROOT, {}) == "/project/claude-iterate/workspaces"
    project.create_file(layout.user_config(), contents="workspaces_dir: of-user\n")
    assert targets.workspaces_directory(ROOT, {}) == "/project/of-user"
    project.create_file(layout.project_config(ROOT), contents="workspaces_dir: of-project\n")
    assert targets.workspaces_directory(ROOT, {}) == "/project/of-project"
    assert targets.workspaces_directory(ROOT, {"SIDECAR_WORKSPACES_DIR": "/project/of-env"}) == "/project/of-env"
    assert targets.workspaces_directory(ROOT, {"SIDECAR_WORKSPACES_DIR": ""}) == "/project/of-project"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workspaces_dir: 'quoted name'\n", "/project/quoted name"),
        ("workspaces_dir: ~/mine\n", "/home/me/mine"),
        ("workspaces_dir: null\n", DEFAULT),
        ('"workspaces\\x5fdir": escaped\n', "/project/escaped"),
        ("# old\rworkspaces_dir: after-a-lone-return\n", "/project/after-a-lone-return"),
    ],
)
def test_where_only_a_parser_can_tell_the_parser_is_asked(project: FakeFilesystem, text: str, expected: str) -> None:
    project.create_file(layout.user_config(), contents="watcher: polling\n")
    project.create_file(layout.project_config(ROOT), contents=text)
    assert targets.workspaces_directory(ROOT, {}) == expected


def test_a_link_that_leads_in_a_circle_does_not_hide_the_other_names(tmp_path: Path) -> None:
    (tmp_path / ".swissarmyhammer" / "workspaces" / "alpha").mkdir(parents=True)
    (tmp_path / ".swissarmyhammer" / "workspaces" / "circle").symlink_to("circle")
    with pytest.raises(SignalError, match=r"\(available: alpha\)"):
        targets.workspace(str(tmp_path), "gamma", {})


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    "name", ["", ".", "..", "../my-task", "my-task/", "/etc", "my-task\0", "a b", "my-task\n", "é"]
)
def test_a_name_that_is_none_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(SignalError, match="not a workspace name") as caught:
        targets.workspace(ROOT, name, {})
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)


@pytest.fixture(scope="module")
def real_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("project")
    workspaces = root / ".swissarmyhammer" / "workspaces"
    workspaces.mkdir(parents=True)
    (root / ".swissarmyhammer" / "runs" / ("0" * 26)).mkdir(parents=True)
    (root.parent / "outside").mkdir(exist_ok=True)
    (workspaces / "escape").symlink_to(root.parent / "outside")
    (workspaces / "up").symlink_to("../../..")
    (workspaces / "inside").symlink_to(root)
    return os.path.realpath(root)


def resolved(root: str, scope: str, name: str) -> targets.Target:
    return targets.run(root, name) if scope == "run" else targets.workspace(root, name, {})


@given(
    st.one_of(
        st.text(max_size=10), st.text(alphabet="./\0-_aeiu", max_size=8), st.sampled_from(["escape", "up", "inside"])
    )
)
@example("escape")
@example("up")
@example("inside")
@settings(deadline=None, database=None)
def test_no_name_whatever_leads_out_of_the_project(real_root: str, name: str) -> None:
    for scope in ("workspace", "run"):
        try:
            directory = resolved(real_root, scope, name).directory
        except SignalError:
            continue
        assert directory == real_root or directory.startswith(real_root + "/")


def test_a_directory_whose_name_only_begins_like_the_projects_is_outside(tmp_path: Path) -> None:
    (tmp_path / "project" / ".swissarmyhammer" / "workspaces").mkdir(parents=True)
    (tmp_path / "project-evil").mkdir()
    (tmp_path / "project" / ".swissarmyhammer" / "workspaces" / "w").symlink_to(tmp_path / "project-evil")
    with pytest.raises(SignalError, match="outside"):
        targets.workspace(os.path.realpath(tmp_path / "project"), "w", {})


def test_a_run_is_found_by_its_id_and_only_where_it_has_a_directory(real_root: str) -> None:
    target = targets.run(real_root, "0" * 26)
    assert (target.scope, target.directory) == ("run", f"{real_root}/.swissarmyhammer/runs/{'0' * 26}")
    with pytest.raises(SignalError, match=rf"Run not found: '{'1' * 26}' \(available: {'0' * 26}\)"):
        targets.run(real_root, "1" * 26)
    with pytest.raises(SignalError, match=r"Run not found: '\.\.'"):
        targets.run(real_root, "..")


def test_a_projects_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ".swissarmyhammer").write_text("a file", encoding="utf-8")
    with pytest.raises(SignalError, match=r"cannot make .*: File exists"):
        targets.project(str(tmp_path))


def test_each_target_knows_the_runs_that_a_signal_there_governs(tmp_path: Path) -> None:
    root = os.path.realpath(tmp_path)
    (tmp_path / ".swissarmyhammer" / "workspaces" / "w").mkdir(parents=True)
    workspace = targets.workspace(root, "w", {})
    bound, free = "0" * 25 + "1", "0" * 25 + "2"
    with (
        run_lock.begin(root, bound, workspace=workspace.directory, driver="server"),
        run_lock.begin(root, free, workspace=None, driver="server"),
    ):
        assert workspace.live_runs() == [bound]
        assert targets.run(root, free).live_runs() == [free]
        assert targets.project(root).live_runs() == [free, bound]
    assert targets.run(root, free).live_runs() == []
    assert workspace.live_runs() == []
    assert targets.project(root).open_runs() == [free, bound]
    run_lock.end(root, free)
    assert targets.run(root, free).open_runs() == []
    with pytest.raises(SignalError, match=f"run {free} has ended, and takes no more signals"):
        targets.run(root, free).refuse_ended()


@pytest.mark.usefixtures("project")
def test_a_text_that_names_a_workspace_or_a_run_is_recognised() -> None:
    run_id = ulid.new()
    assert targets.is_workspace_or_run(ROOT, "my-task", {}) == "workspace"
    assert targets.is_workspace_or_run(ROOT, run_id, {}) is None
    os.makedirs(layout.run_directory(ROOT, run_id))
    assert targets.is_workspace_or_run(ROOT, run_id, {}) == "run"
    for text in ("", "other", "..", "my-task is stuck", "my-task/", "a\0b"):
        assert targets.is_workspace_or_run(ROOT, text, {}) is None


def test_a_setting_that_is_unset_in_the_project_beats_the_users_whichever_way_it_is_read(
    project: FakeFilesystem,
) -> None:
    project.create_file(layout.user_config(), contents="workspaces_dir: of-user\n")
    project.create_file(layout.project_config(ROOT), contents="workspaces_dir: null\n")
    assert targets.workspaces_directory(ROOT, {}) == DEFAULT
