"""Settings: which source beats which, and errors that name the file and the setting."""

from __future__ import annotations

import pytest
from pyfakefs.fake_filesystem import FakeFilesystem

from sidecar import config, layout
from sidecar.errors import ConfigError

ROOT = "/project"


@pytest.fixture
def home(fs: FakeFilesystem, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", "/home/me")
    fs.makedirs("/home/me")
    fs.makedirs(ROOT)
    return "/home/me"


def project_file(fs: FakeFilesystem, text: str) -> None:
    fs.create_file(layout.project_config(ROOT), contents=text)


def user_file(fs: FakeFilesystem, text: str) -> None:
    fs.create_file(layout.user_config(), contents=text)


@pytest.mark.usefixtures("home")
def test_each_source_beats_the_one_before_it(fs: FakeFilesystem, home: str) -> None:
    assert (config.load(ROOT, {}).workspaces_dir, config.load(ROOT, {}).watcher) == (None, "auto")
    fs.create_file(f"{home}/.config/sidecar/config.yaml", contents="workspaces_dir: of-user\nwatcher: polling\n")
    assert config.load(ROOT, {}).workspaces_dir == "of-user"
    project_file(fs, "workspaces_dir: of-project\n")
    assert config.load(ROOT, {}).workspaces_dir == "of-project"
    assert config.load(ROOT, {}).watcher == "polling"
    variables = {"SIDECAR_WORKSPACES_DIR": "of-variable"}
    assert config.load(ROOT, variables).workspaces_dir == "of-variable"
    assert config.load(ROOT, variables, workspaces_dir="of-flag").workspaces_dir == "of-flag"
    assert config.load(ROOT, variables, workspaces_dir=None).workspaces_dir == "of-variable"
    fs.remove_object(layout.project_config(ROOT))
    project_file(fs, "workspaces_dir: null\n")
    assert config.load(ROOT, {}).workspaces_dir is None


@pytest.mark.usefixtures("home")
def test_an_empty_variable_and_variables_that_name_no_setting_set_nothing(fs: FakeFilesystem) -> None:
    project_file(fs, "workspaces_dir: of-project\n")
    variables = {
        "SIDECAR_WORKSPACES_DIR": "",
        "SIDECAR_PROJECT": "/x",
        "SIDECAR_RUN_ID": "y",
        "SIDECAR_FROBNICATE": "z",
    }
    assert config.load(ROOT, variables).workspaces_dir == "of-project"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workspace_dir: x\n", "unknown setting 'workspace_dir'; did you mean 'workspaces_dir'?"),
        ("zzz: x\n", "unknown setting 'zzz'; available: "),
        ("workspaces_dir: 12\n", "workspaces_dir: "),
        ("watcher: sometimes\n", "watcher: "),
        ("- a\n- b\n", "a settings file is a mapping"),
        ("a: b: c\n", "is not YAML"),
        ("a: 2026-99-99\n", "is not YAML"),
        ("a: !!int ''\n", "is not YAML"),
        ("a: !!bool maybe\n", "is not YAML"),
        ("a: !!timestamp soon\n", "is not YAML"),
        ("[" * 5000, "is not YAML"),
        ("a: !!python/object/apply:os.system [true]\n", "is not YAML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_file_and_setting(
    fs: FakeFilesystem, text: str, message: str
) -> None:
    project_file(fs, text)
    with pytest.raises(ConfigError) as caught:
        config.load(ROOT, {})
    assert message in str(caught.value)
    assert layout.project_config(ROOT) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("home")
def test_a_file_that_cannot_be_read_is_refused_in_one_line(fs: FakeFilesystem) -> None:
    fs.create_file(layout.project_config(ROOT), contents=b"workspaces_dir: \xff\n")
    with pytest.raises(ConfigError, match="cannot read /project") as caught:
        config.load(ROOT, {})
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("home")
def test_everything_that_is_wrong_is_told_at_once_with_its_line_and_in_plain_words(fs: FakeFilesystem) -> None:
    user_file(fs, "# mine\nwather: polling\n")
    text = "kill_after_s: soon\nkeep_runs: 0\n\nnotify:\n  - type: desktop\n  - type: ntfi\n    every: 1.5\n"
    project_file(fs, text + "metrics: 3\nhttp_token: short\nkeep_runs: 5.5\n")
    with pytest.raises(ConfigError) as caught:
        config.load(ROOT, {"SIDECAR_WATCHER": "x", "SIDECAR_NOTIFY": '[{"type": "desktop", "every": 0}]'})
    user, project = layout.user_config(), layout.project_config(ROOT)
    assert str(caught.value) == "; ".join(
        [
            f"{user}:2: unknown setting 'wather'; did you mean 'watcher'?",
            f"{project}:1: kill_after_s: has to be a number",
            f"{project}:6: notify.1.type: 'ntfi' is not 'desktop', 'ntfy', 'webhook' or 'command'",
            f"{project}:7: notify.1.every: has to be a whole number",
            f"{project}:8: metrics: has to be true or false",
            f"{project}:9: http_token: has to have 16 characters or more",
            f"{project}:10: 'keep_runs' is there twice",
            f"{project}:10: keep_runs: has to be a whole number",
            "SIDECAR_WATCHER: 'x' is not 'auto', 'inotify', 'watchdog' or 'polling'",
            "SIDECAR_NOTIFY.0.every: has to be 1 or more, not 0",
        ]
    )


# --- notifications


@pytest.mark.usefixtures("home")
def test_ways_to_notify_are_read_from_files_and_as_json_from_a_variable(fs: FakeFilesystem) -> None:
    project_file(fs, "notify:\n  - {type: ntfy, url: 'https://ntfy.sh/x', events: [failed]}\n  - type: desktop\n")
    ntfy, desktop = config.load(ROOT, {}).notify
    assert (ntfy.url, ntfy.events, ntfy.every) == ("https://ntfy.sh/x", ("failed",), 10)
    assert desktop.events == ("waiting", "stopped", "aborted", "failed", "completed")
    (command,) = config.load(ROOT, {"SIDECAR_NOTIFY": '[{"type": "command", "command": ["say", "it"]}]'}).notify
    assert command.command == ("say", "it")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{type: ntfy}", "notify.0: type 'ntfy' needs 'url'"),
        ("{type: desktop, url: 'https://x/y'}", "notify.0: type 'desktop' has no 'url'"),
        ("{type: command}", "notify.0: type 'command' needs 'command'"),
        ("{type: webhook, url: 'file:///etc/passwd'}", "notify.0.url: "),
        ("{type: webhook, url: $URL, token: x}", "notify.0: only type 'ntfy' has a 'token'"),
        ("{type: desktop, events: [finished]}", "notify.0.events.0: "),
        ("{type: desktop, evants: []}", "unknown setting 'notify.0.evants'; did you mean 'events'?"),
    ],
)
@pytest.mark.usefixtures("home")
def test_a_way_to_notify_that_cannot_work_is_refused_with_its_place(
    fs: FakeFilesystem, entry: str, message: str
) -> None:
    project_file(fs, f"notify: [{entry}]\n")
    with pytest.raises(ConfigError) as caught:
        config.load(ROOT, {})
    assert str(caught.value).startswith(f"{layout.project_config(ROOT)}:1: {message}")


def test_what_is_shown_has_no_secret_in_it() -> None:
    settings = config.Settings.model_validate(
        {
            "http_token": "hush-hush-hush-hush",
            "notify": [
                {"type": "webhook", "url": "https://me:hush@hooks.example:8443/hush/hush"},
                {"type": "ntfy", "url": "$NTFY_URL", "token": "hush"},
            ],
            "mcp_servers": {"x": {"command": "y", "env": {"KEY": "hush"}, "headers": {"A": "hush"}}},
        }
    )
    shown = settings.shown()
    assert "hush" not in str(shown)
    assert shown["notify"][0]["url"] == "https://hooks.example:8443/********"
    assert shown["notify"][1]["url"] == "$NTFY_URL"
    assert shown["mcp_servers"]["x"] == {"command": "y", "env": {"KEY": "********"}, "headers": {"A": "********"}}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_a_file_without_settings_sets_nothing(fs: FakeFilesystem, text: str) -> None:
    project_file(fs, text)
    loaded = config.load(ROOT, {})
    assert (loaded.workspaces_dir, loaded.watcher) == (None, "auto")


@pytest.mark.usefixtures("home")
def test_a_variable_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="SIDECAR_NOTIFY: as a variable it is JSON, and this is not"):
        config.load(ROOT, {"SIDECAR_NOTIFY": "desktop"})
