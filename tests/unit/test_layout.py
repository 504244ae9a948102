"""Where a project begins, what may be called a name, and settings that are read without a YAML parser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from sidecar import layout
from sidecar.errors import ConfigError, SidecarError

KEY = "workspaces_dir"
quick = settings(deadline=None, database=None)


def make(fs: FakeFilesystem, *directories: str) -> None:
    for directory in directories:
        fs.makedirs(directory)


@pytest.mark.parametrize(
    ("directories", "files", "start", "root"),
    [
        (["/o/.swissarmyhammer", "/o/i/.swissarmyhammer", "/o/i/src"], [], "/o/i/src", "/o/i"),
        (["/o/.swissarmyhammer"], [], "/o", "/o"),
        (["/p/.swissarmyhammer", "/p/vendored/.git", "/p/vendored/src"], [], "/p/vendored/src", "/p"),
        (["/repo/.git", "/repo/part/.git", "/repo/part/src"], [], "/repo/part/src", "/repo/part"),
        (["/worktree/src"], ["/worktree/.git"], "/worktree/src", "/worktree"),
        (["/plain/src"], [], "/plain/src", "/plain/src"),
        (["/plain/src"], ["/plain/.swissarmyhammer"], "/plain/src", "/plain/src"),
        (["/home/me/.swissarmyhammer/workflows", "/home/me/work"], [], "/home/me/work", "/home/me/work"),
        (["/home/me/.swissarmyhammer", "/home/me/.git", "/home/me/work"], [], "/home/me/work", "/home/me"),
    ],
)
def test_the_root_is_the_nearest_state_directory_or_else_the_nearest_git_directory_and_never_that_of_the_home(
    fs: FakeFilesystem, directories: list[str], files: list[str], start: str, root: str
) -> None:
    make(fs, *directories)
    for file in files:
        fs.create_file(file)
    assert layout.root_above(start, home="/home/me") == root


def test_symbolic_links_hide_neither_the_home_directory_nor_the_root(fs: FakeFilesystem) -> None:
    make(fs, "/disk/me/.swissarmyhammer", "/disk/me/work", "/disk/project/.swissarmyhammer", "/disk/project/src")
    fs.create_symlink("/home/me", "/disk/me")
    assert layout.root_above("/home/me/work", home="/home/me") == "/disk/me/work"
    fs.create_symlink("/shortcut", "/disk/project/src")
    assert layout.root_above("/shortcut", home="/home/me") == "/disk/project"


def test_an_override_beats_the_variable_and_the_variable_beats_the_working_directory(fs: FakeFilesystem) -> None:
    make(fs, "/here/.swissarmyhammer", "/named", "/flagged")
    os.chdir("/here")
    assert layout.find_root(None, {}) == "/here"
    assert layout.find_root(None, {"SIDECAR_PROJECT": ""}) == "/here"
    assert layout.find_root(None, {"SIDECAR_PROJECT": "/named"}) == "/named"
    assert layout.find_root("/flagged", {"SIDECAR_PROJECT": "/named"}) == "/flagged"


def test_a_named_root_that_does_not_exist_is_refused_and_says_who_named_it(fs: FakeFilesystem) -> None:
    with pytest.raises(SidecarError, match=r"^--project: no such directory: /gone$"):
        layout.find_root("/gone", {})
    with pytest.raises(SidecarError, match=r"^SIDECAR_PROJECT: no such directory: /gone$"):
        layout.find_root(None, {"SIDECAR_PROJECT": "/gone"})
    with pytest.raises(SidecarError, match="needs a directory"):
        layout.find_root("", {})


def test_a_working_directory_that_was_deleted_is_one_plain_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    monkeypatch.chdir(doomed)
    doomed.rmdir()
    with pytest.raises(SidecarError, match="no longer exists"):
        layout.find_root(None, {})


@given(st.text(max_size=12))
@example("")
@example("..")
@example("a/b")
@example("a\0b")
@example("a\n")
@example("é")
@example("٣")
@quick
def test_no_name_that_is_accepted_can_leave_its_directory(text: str) -> None:
    if layout.is_name(text):
        assert text.isascii()
        assert os.path.normpath(os.path.join("/ws", text)) == f"/ws/{text}"
        assert os.path.dirname(os.path.normpath(os.path.join("/ws", text))) == "/ws"


@given(st.from_regex(r"\A[A-Za-z0-9_-]+\Z"))
@quick
def test_every_name_of_letters_digits_dash_and_underscore_is_accepted(text: str) -> None:
    assert layout.is_name(text)


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings") / "config.yaml"


def quickly(file: Path, text: str) -> str | None:
    file.write_bytes(text.encode())
    return layout.quick_setting(str(file), KEY)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# workspaces_dir: old\n", None),
        ("watcher: polling\n", None),
        ("workspaces_dir: ws\n", "ws"),
        ("workspaces_dir: ws", "ws"),
        ("workspaces_dir:   a/b-c_d.e/   \nwatcher: polling\n", "a/b-c_d.e/"),
        ("watcher: auto\n# a remark\nworkspaces_dir: /srv/ws # here\n\nother: x\n", "/srv/ws"),
        ("other:\n  - 1\nworkspaces_dir: ./1\n", "./1"),
        ("workspaces_dir: ws\n# workspaces_dir: old\n", "ws"),
    ],
)
def test_the_settings_that_people_write_are_read_without_a_parser(
    settings_file: Path, text: str, value: str | None
) -> None:
    assert quickly(settings_file, text) == value
    assert ((yaml.safe_load(text) or {}).get(KEY)) == value


@pytest.mark.parametrize(
    "text",
    [
        "workspaces_dir:\n",
        "workspaces_dir: null\n",
        "workspaces_dir: yes\n",
        "workspaces_dir: 12\n",
        "workspaces_dir: 2026-11-15\n",
        "workspaces_dir: ~/ws\n",
        "workspaces_dir: 'ws'\n",
        "workspaces_dir: a b\n",
        "workspaces_dir: a\n  b\n",
        "workspaces_dir: a\nworkspaces_dir: b\n",
        "'workspaces_dir': a\n",
        '"workspaces\\x5fdir": a\n',
        "nested:\n  workspaces_dir: a\n",
        "text: |\n  x\nworkspaces_dir: a\n",
        "---\nworkspaces_dir: a\n",
        "{workspaces_dir: a}\n",
        "workspaces_dir : a\n",
        "? workspaces_dir\n: a\n",
        "workspaces_dir: a\r\n",
        "\ufeffworkspaces_dir: a\n",
        "# a remark\rworkspaces_dir: a",
        "# a remark\u2028workspaces_dir: a",
        "# a remark\x85workspaces_dir: a",
        "workspaces_dir: a #\u2029workspaces_dir: b",
    ],
)
def test_whatever_only_a_parser_can_tell_is_left_to_the_parser(settings_file: Path, text: str) -> None:
    with pytest.raises(layout.Undecided):
        quickly(settings_file, text)


FRAGMENTS = [
    KEY, KEY, f"{KEY}: ", f"\n{KEY}: ", f"{KEY}:", f" {KEY}: ", f"# {KEY}: ", f"- {KEY}: ", f"'{KEY}': ",
    "\n", "\n", "\n  ", "\n- ", " ", ": ", ":", "#", " #", "\n#", "\t", "\ufeff",
    "\r", "\r\n", "\x85", "\u2028", "\u2029",
    "a", "b/c", "/srv/ws", "./x", "../x", ".", "..", "...", "-", "--", "---", "~", "~/x", "é",
    "ws: ", "other: ", "other:\n", "x" * 130,
    "true", "No", "off", "y", "null", "Null", "0", "12", "1.5", "1e3", "1e3/", "0x1F", "0o17", "017", "1_000",
    "1:30", ".inf", ".nan/", "2026-11-15", "2026-11-15/x", "=", "<<: ", "<<", "&x ", "*x", "!!str ", "!!int ", "!",
    "|\n ", ">\n ", "'", '"', "\\", "\\x5f", "{", "}", "[", "]", ",", "? ", "%", "@", "`", "$", "(",
]  # fmt: skip


@given(
    st.one_of(
        st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join),
        st.lists(st.sampled_from(FRAGMENTS), max_size=4).map(lambda parts: f"{KEY}: " + "".join(parts)),
        st.text(alphabet="ab1.-/_:# \n", max_size=12).map(lambda text: f"{KEY}: {text}"),
    )
)
@example("# a remark\rworkspaces_dir: a")
@example("# a remark\u2028workspaces_dir: a")
@example("workspaces_dir: a #\u2028workspaces_dir: b")
@settings(quick, max_examples=1000)
def test_the_quick_reader_agrees_with_yaml_or_does_not_decide(settings_file: Path, text: str) -> None:
    try:
        expected = yaml.safe_load(text)
    except Exception:  # YAMLError, but also what PyYAML lets through for values such as 2026-99-99 or !!int ''
        return  # broken: whoever needs the whole file reports it; a stop must not fail for another line's sake
    try:
        found = quickly(settings_file, text)
    except layout.Undecided:
        return
    assert found == (expected.get(KEY) if isinstance(expected, dict) else None)


def test_a_settings_file_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "directory.yaml").mkdir()
    for name in ("binary.yaml", "directory.yaml"):
        with pytest.raises(ConfigError, match=name) as caught:
            layout.quick_setting(str(tmp_path / name), KEY)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "/a", "a\0", "a b", "a.b", "naïve", "a\n", "~", "$HOME", "*"])
def test_anything_else_is_no_name(text: str) -> None:
    assert not layout.is_name(text)


def test_a_root_that_is_named_is_taken_as_it_is_and_not_searched_upwards(fs: FakeFilesystem) -> None:
    make(fs, "/project/.swissarmyhammer", "/project/src")
    assert layout.find_root("/project/src", {}) == "/project/src"
