"""`sidecar doctor`: what it finds, what it says to do about it, and its exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit import HeldRun, call, new_id


class Doctor:
    """A project with an agent that has a version, and a PATH with no other."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self.state = self.root / ".swissarmyhammer"
        self.workspace = self.state / "workspaces" / "ws"
        self.workspace.mkdir(parents=True)
        self.programs = root / "bin"
        self.programs.mkdir()
        self.program("claude", "echo '2.1.0 (Claude Code)'")

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return call("doctor", *arguments, cwd=self.root, PATH=f"{self.programs}:/usr/bin:/bin")

    def findings(self) -> list[dict[str, Any]]:
        found = self.command("--json")
        told = json.loads(found.stdout)
        problems = [finding for finding in told["findings"] if finding["state"] == "problem"]
        assert (found.returncode, told["ok"]) == ((1, False) if problems else (0, True))
        findings: list[dict[str, Any]] = told["findings"]
        return findings

    def problems(self) -> list[tuple[str, str, str]]:
        found = [finding for finding in self.findings() if finding["state"] == "problem"]
        return [(finding["topic"], finding["text"], finding["advice"]) for finding in found]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def test_a_sound_project_has_everything_told_and_nothing_to_mend(doctor: Doctor) -> None:
    before = sorted(str(path) for path in doctor.root.rglob("*"))
    findings = doctor.findings()
    assert [finding for finding in findings if finding["state"] == "problem"] == []
    topics = {finding["topic"] for finding in findings}
    assert topics >= {"project", "settings", "python", "versions", "clock", "signals", "stale files", "daemon"}
    assert topics >= {"database", "containment", "agents", "service"}
    texts = "\n".join(finding["text"] for finding in findings)
    assert f"claude: 2.1.0 (Claude Code), {doctor.programs}/claude" in texts
    assert "codex: " in texts
    assert "cannot catch: " in texts
    assert sorted(str(path) for path in doctor.root.rglob("*")) == before


def test_for_people_a_problem_has_a_mark_and_its_advice_below(doctor: Doctor) -> None:
    assert doctor.command().stdout.endswith("\nno problems\n")
    (doctor.workspace / ".stop").write_text("tests are red\n")
    found = doctor.command()
    assert found.returncode == 1
    lines = found.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("stale files ! "))
    assert "tests are red" in lines[place]
    assert lines[place + 1].strip() == f"→ rm '{doctor.workspace}/.stop', unless you want that"
    assert lines[-1] == "1 problem"


@pytest.mark.parametrize("where", ["", "workspaces/ws", "run"])
@pytest.mark.parametrize("name", [".stop", ".abort"])
def test_a_signal_that_no_live_run_obeys_is_stale(doctor: Doctor, where: str, name: str) -> None:
    run_id = new_id()
    path = doctor.state / ("runs/" + run_id if where == "run" else where) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    ((topic, text, advice),) = doctor.problems()
    assert topic == "stale files"
    assert text.startswith(f"{path}, since ")
    assert advice.startswith(f"rm '{path}'")


def test_a_signal_for_a_live_run_is_none_of_the_doctors_business(doctor: Doctor) -> None:
    with HeldRun(doctor.root, doctor.workspace):
        (doctor.workspace / ".stop").touch()
        (doctor.state / ".abort").touch()
        assert doctor.problems() == []


def test_halves_of_writers_that_died_and_sockets_that_nobody_serves_are_named(doctor: Doctor) -> None:
    half = doctor.workspace / ".stop.0123456789abcdef.tmp"
    fresh = doctor.workspace / ".abort.0123456789abcdef.tmp"
    for path in (half, fresh):
        path.touch()
    long_ago = time.time() - 1000
    os.utime(half, (long_ago, long_ago))
    run = doctor.state / "runs" / new_id()
    run.mkdir(parents=True)
    before = os.getcwd()
    for directory, name in ((doctor.state, "sidecar.sock"), (run, "mcp.sock")):
        os.chdir(directory)  # the path may be longer than a socket's address
        dead = socket.socket(socket.AF_UNIX)
        dead.bind(name)
        dead.close()
    os.chdir(before)
    notes = {finding["topic"]: finding for finding in doctor.findings() if finding["state"] == "note"}
    assert f"'{half}'" in notes["stale files"]["text"]
    assert str(fresh) not in notes["stale files"]["text"]
    assert notes["stale files"]["advice"] == f"rm '{half}'"
    assert str(doctor.state / "sidecar.sock") in notes["sockets"]["text"]
    assert str(run / "mcp.sock") in notes["sockets"]["text"]


def test_a_database_is_told_sound_or_damaged_or_open_to_others(doctor: Doctor) -> None:
    path = doctor.state / "sidecar.db"
    (doctor.state / "workflows").mkdir()
    (doctor.state / "workflows" / "w.yaml").write_text("steps: [{type: user_message, message: hello}]\n")
    call("flow", "run", "w", cwd=doctor.root).check_returncode()
    assert doctor.problems() == []
    path.chmod(0o644)
    ((topic, text, advice),) = doctor.problems()
    assert (topic, advice) == ("database", f"chmod 600 '{path}'")
    assert "can be read by others" in text
    path.chmod(0o600)
    path.write_bytes(b"this is no database, and it is long enough to be taken for one" * 100)
    ((topic, text, _),) = doctor.problems()
    assert topic == "database"
    assert str(path) in text


def test_an_agent_that_somebody_counts_on_has_to_be_there(doctor: Doctor) -> None:
    (doctor.state / "config.yaml").write_text("default_agent: gemini\n")
    ((topic, text, advice),) = doctor.problems()
    assert (topic, text.partition(":")[0]) == ("agents", "gemini")
    assert "default_agent" in advice
    doctor.program("gemini", "echo broken >&2; exit 3")
    ((_, text, _),) = doctor.problems()
    assert text == f"gemini: {doctor.programs}/gemini does not work: broken"
    (doctor.state / "config.yaml").write_text("default_agent: nobody\n")
    assert "default_agent is 'nobody', which does not exist" in [text for _, text, _ in doctor.problems()]


def test_the_default_agent_has_to_be_there_also_where_nobody_chose_it(doctor: Doctor) -> None:
    (doctor.programs / "claude").unlink()
    ((topic, text, advice),) = doctor.problems()
    assert (topic, text.partition(":")[0]) == ("agents", "claude")
    assert "default_agent" in advice
    doctor.program("codex", "echo codex-cli 1.0")
    (doctor.state / "config.yaml").write_text("default_agent: codex\n")
    assert doctor.problems() == []


def test_a_small_number_without_a_unit_in_a_setting_or_an_agents_limits_is_noted(doctor: Doctor) -> None:
    (doctor.state / "config.yaml").write_text("take_over_after: 45\nhand_over_within: 60s\n")
    (doctor.state / "agents").mkdir()
    agent = doctor.state / "agents/fixer.yaml"
    agent.write_text("adapter: claude\nlimits: {timeout: 20m, idle_timeout: 3}\n")
    found = [(one["topic"], one["text"]) for one in doctor.findings() if one["state"] == "note"]
    told = "without a unit means milliseconds; write"
    assert ("settings", f"`take_over_after`: 45 {told} 45s for seconds, or 45ms") in found
    assert ("agents", f"{agent}:2: `idle_timeout`: 3 {told} 3s for seconds, or 3ms") in found
    assert len([text for _, text in found if "without a unit" in text]) == 2


def test_broken_settings_are_a_finding_and_hide_nothing_else(doctor: Doctor) -> None:
    (doctor.state / "config.yaml").write_text("kill_after_s: soon\n")
    findings = doctor.findings()
    broken = [finding for finding in findings if finding["state"] == "problem"]
    assert [finding["topic"] for finding in broken] == ["settings"]
    assert "kill_after_s" in broken[0]["text"]
    assert "containment" in {finding["topic"] for finding in findings}
