"""Service definitions: names, quoting, seals, and what launchd is given."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import SidecarError
from sidecar.service import units

TEMPLATES = Path(__file__).parents[3] / "systemd"
HERE = units.Installation(
    root="/home/me/my app",
    program=("/opt/side car/bin/sidecar",),
    search_path="/home/me/bin:/usr/bin",
    home="/home/me",
    uid=1000,
)


def template(name: str) -> str:
    return (TEMPLATES / name).read_text()


def user_unit(**changed: Any) -> units.ServiceUnit:
    return units.systemd(template(units.USER_TEMPLATE), replace(HERE, **changed))


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(f"{key}=")]


@pytest.mark.skipif(shutil.which("systemd-escape") is None, reason="there is no systemd-escape to compare with")
def test_a_path_is_escaped_as_systemd_does_it() -> None:
    paths = ["/", "/srv/app", "/home/me/my-app", "/a b/ü%$&'\"\\/x", "/.hidden/.x", "/a.b:c_d", "/srv/app/", "/-"]
    command = ["systemd-escape", "--path", "--", *paths]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [units.escaped_path(path) for path in paths] == told.split()


def test_a_unit_is_named_after_the_project_and_goes_where_its_manager_looks() -> None:
    name = "sidecar@home-me-my\\x20app.service"
    assert user_unit().name == name
    assert user_unit().path == f"/home/me/.config/systemd/user/{name}"
    system = units.systemd(template(units.SYSTEM_TEMPLATE), replace(HERE, user="me"))
    assert system.path == f"/etc/systemd/system/{name}"
    assert values(system.text, "User") == ["me"]
    assert values(user_unit().text, "User") == []


def test_a_path_that_is_too_long_for_a_name_is_refused_with_the_reason() -> None:
    with pytest.raises(SidecarError, match="at most 255"):
        user_unit(root="/" + "a-" * 50)


def test_only_the_values_of_this_installation_differ_from_the_template() -> None:
    for name, person in ((units.USER_TEMPLATE, None), (units.SYSTEM_TEMPLATE, "me")):
        original = template(name).split("\n[", 1)[1].splitlines()
        made = units.systemd(template(name), replace(HERE, user=person)).text.split("\n[", 1)[1].splitlines()
        differing = {old.partition("=")[0] for old, new in zip(original, made, strict=True) if old != new}
        assert differing == {"ExecStart", "Environment"} | ({"User"} if person else set())


def test_no_character_of_a_path_means_anything_to_systemd() -> None:
    program = ("/opt/a b/100%/\"q'\\/sidecar", "-x;", "line\nbreak")
    (line,) = values(user_unit(program=program).text, "ExecStart")
    assert line == ':"/opt/a b/100%%/\\"q\'\\\\/sidecar" "-x;" "line\\x0abreak" daemon --project %f'
    (assigned,) = values(user_unit(search_path="/50%/b in").text, "Environment")
    assert assigned == '"PATH=/50%%/b in"'


def test_a_file_is_untouched_until_anything_in_it_changes() -> None:
    plist = units.launchd(template(units.LAUNCHD_TEMPLATE), HERE).text
    for text in (user_unit().text, plist):
        assert units.is_untouched(text)
        assert not units.is_untouched(text + "\n")
        assert not units.is_untouched(text.replace("daemon", "deamon", 1))
        assert not units.is_untouched(text.split("\n", 2)[2])
        assert not units.is_untouched(text.replace("sha256:", "sha256:0", 1))


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_can_be_sealed_and_a_text_that_was_not_is_not(text: str) -> None:
    assert units.is_untouched(units.sealed(text, "# {}\n"))
    assert not units.is_untouched(text)
    assert not units.is_untouched(f"# sha256:{'0' * 64}\n{text}")


# --- launchd. Its own tools accept misspelt keys and wrong types, and ignore them: so they are checked here, against
# launchd.plist(5).
KEYS: dict[str, type | tuple[type, ...]] = {
    "Label": str,
    "ProgramArguments": list,
    "WorkingDirectory": str,
    "EnvironmentVariables": dict,
    "RunAtLoad": bool,
    "KeepAlive": (bool, dict),
    "ThrottleInterval": int,
    "ExitTimeOut": int,
    "AbandonProcessGroup": bool,
    "ProcessType": str,
    "SoftResourceLimits": dict,
    "StandardOutPath": str,
    "StandardErrorPath": str,
    "UserName": str,
}
BELOW: dict[str, dict[str, type]] = {
    "KeepAlive": {"SuccessfulExit": bool},
    "SoftResourceLimits": {"NumberOfFiles": int},
}


def linted(text: str) -> dict[str, Any]:
    """The content of a property list, if launchd would take every word of it."""
    content: dict[str, Any] = plistlib.loads(text.encode(), fmt=plistlib.FMT_XML)
    for key, value in content.items():
        assert key in KEYS, key
        assert isinstance(value, KEYS[key]), key
        assert KEYS[key] is not int or type(value) is int, key  # not a boolean
    for key, inner in BELOW.items():
        assert {name: type(value) for name, value in content[key].items()} == inner
    assert {"Label", "ProgramArguments"} <= set(content)
    assert all(isinstance(word, str) for word in content["ProgramArguments"])
    assert all(isinstance(word, str) for word in content["EnvironmentVariables"].values())
    assert content["ProcessType"] in ("Background", "Standard", "Adaptive", "Interactive")
    paths = (content["ProgramArguments"][0], content["WorkingDirectory"], content["StandardErrorPath"])
    assert all(path.startswith("/") and "~" not in path for path in paths)  # launchd expands nothing
    return content


def test_the_property_list_has_only_keys_and_types_that_launchd_knows() -> None:
    linted(template(units.LAUNCHD_TEMPLATE))
    made = linted(units.launchd(template(units.LAUNCHD_TEMPLATE), HERE).text)
    assert made["Label"] == "sidecar.home-me-my\\x20app"
    assert made["ProgramArguments"] == ["/opt/side car/bin/sidecar", "daemon", "--project", "/home/me/my app"]
    assert made["KeepAlive"] == {"SuccessfulExit": False}
    assert made["AbandonProcessGroup"] is False
    assert "UserName" not in made
    with pytest.raises(AssertionError):
        linted(template(units.LAUNCHD_TEMPLATE).replace("KeepAlive", "KeepAlife"))
    with pytest.raises(AssertionError):
        linted(template(units.LAUNCHD_TEMPLATE).replace("<integer>30</integer>", "<string>30</string>"))


def test_a_daemon_of_the_system_runs_as_the_owner_and_an_agent_of_a_person_in_her_session() -> None:
    system = units.launchd(template(units.LAUNCHD_TEMPLATE), replace(HERE, user="me"))
    assert linted(system.text)["UserName"] == "me"
    assert system.path == f"/Library/LaunchDaemons/{system.name}.plist"
    assert ("launchctl", "bootstrap", "system", system.path) in system.start
    own = units.launchd(template(units.LAUNCHD_TEMPLATE), HERE)
    assert own.path == f"/home/me/Library/LaunchAgents/{own.name}.plist"
    assert own.end == (("launchctl", "bootout", f"gui/1000/{own.name}"),)
    assert own.renew[0] == own.end[0]  # a changed file is not read while the old one is loaded
    assert own.directories == ("/home/me/Library/Logs/sidecar",)


@pytest.mark.parametrize("user", ["me", "a%b", "Jo <&> Co"])
def test_a_file_tells_who_its_service_runs_as(user: str) -> None:
    for made in (
        units.systemd(template(units.SYSTEM_TEMPLATE), replace(HERE, user=user)),
        units.launchd(template(units.LAUNCHD_TEMPLATE), replace(HERE, user=user)),
    ):
        assert units.user_of(made.text) == user
    assert units.user_of(user_unit().text) is None
    assert units.user_of("") is None


def test_launchd_waits_longer_than_the_ladder_takes() -> None:
    def exit_timeout(kill_after_s: float) -> int:
        made = units.launchd(template(units.LAUNCHD_TEMPLATE), replace(HERE, kill_after_s=kill_after_s))
        return int(plistlib.loads(made.text.encode())["ExitTimeOut"])

    assert exit_timeout(5) >= 20
    assert exit_timeout(600) > 607


def test_the_log_of_a_daemon_is_its_users_and_that_of_a_person_needs_no_help() -> None:
    system = units.launchd(template(units.LAUNCHD_TEMPLATE), replace(HERE, user="me"))
    assert system.written_by_user == (linted(system.text)["StandardOutPath"],)
    assert system.directories == ("/Library/Logs/sidecar",)
    assert units.launchd(template(units.LAUNCHD_TEMPLATE), HERE).written_by_user == ()


def test_a_daemon_of_a_mac_finds_what_homebrew_installed() -> None:
    assert units.search_path("/Users/me", "darwin").split(":")[:2] == ["/Users/me/.local/bin", "/opt/homebrew/bin"]
    assert "homebrew" not in units.search_path("/home/me", "linux")
    assert all(units.search_path("/home/me", name).endswith(":/usr/bin:/sbin:/bin") for name in ("darwin", "linux"))


def test_who_has_no_manager_is_told_what_helps_on_that_system() -> None:
    assert "loginctl enable-linger" in user_unit().without_manager
    told = units.launchd(template(units.LAUNCHD_TEMPLATE), HERE).without_manager
    assert "loginctl" not in told
    assert "--system" in told
