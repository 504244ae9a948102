"""`sidecar support-bundle`: enough for a bug report, and no secret."""

from __future__ import annotations

import json
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.kit import call, journal, until

SECRETS = {
    "ANTHROPIC_API_KEY": "sk-ant-of-the-environment",
    "MY_OWN_TOKEN": "a-token-that-no-setting-names",
}
SETTINGS = {
    "http_token": "the-token-of-the-http-port",
    "notify": [{"type": "ntfy", "url": "https://ntfy.example/a-secret-topic", "token": "the-token-of-ntfy"}],
    "otlp_endpoint": "https://otlp.example/secret-path",
    "otlp_headers": {"Authorization": "Bearer-of-spans"},
    "mcp_servers": {"db": {"command": "db", "args": ["--password", "an-argument"], "env": {"X": "variable-of-db"}}},
}
HIDDEN = [
    *SECRETS.values(),
    "the-token-of-the-http-port",
    "a-secret-topic",
    "the-token-of-ntfy",
    "secret-path",
    "Bearer-of-spans",
    "an-argument",
    "variable-of-db",
    "secret-of-the-detached-run",
    "this prompt is nobody's business",
    "pass@word",
]
WORKFLOW = {
    "steps": [
        {"type": "user_message", "message": "a key: a-token-that-no-setting-names, secret-of-the-detached-run"},
        {"type": "user_message", "message": "cannot reach postgres://bob:pass@word@db.example:5432/x"},
        {"type": "shell_command", "command": 'echo "this prompt is nobody\'s business"'},
    ]
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".swissarmyhammer" / "workflows").mkdir(parents=True)
    (tmp_path / ".swissarmyhammer" / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    return tmp_path


def sidecar(project: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    # No agent is to be found: to ask three programs for their versions takes most of the time.
    return call(*arguments, cwd=project, **SECRETS, **more, PATH="/usr/bin:/bin")


def bundle(project: Path) -> dict[str, str]:
    done = sidecar(project, "support-bundle", "-o", "b.tar.gz")
    assert (done.returncode, done.stderr) == (0, "")
    with tarfile.open(project / "b.tar.gz") as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.removeprefix("sidecar-support/")] = file.read().decode()
    return found


def test_a_bundle_holds_no_secret(project: Path) -> None:
    (project / ".swissarmyhammer" / "workflows" / "w.yaml").write_text(yaml.safe_dump(WORKFLOW))
    assert sidecar(project, "flow", "run", "w").returncode == 0
    # The journal keeps the environment of a run that was detached.
    environment = {"OPENAI_API_KEY": "secret-of-the-detached-run"}
    assert sidecar(project, "flow", "run", "w", "--detach", **environment).returncode == 0
    until(lambda: [run.status for run in journal.runs(project)] == ["completed", "completed"])
    run = journal.runs(project)[1]
    found = bundle(project)
    for name, text in found.items():
        for secret in HIDDEN:
            assert secret not in text, (name, secret)
    log = found[f"logs/{run.run_id}/run.log"]
    assert "a key: ********, ********" in log
    assert "cannot reach postgres://********@db.example:5432/x" in log


def test_a_bundle_tells_what_a_report_needs_and_is_for_its_owner_alone(project: Path) -> None:
    (project / ".swissarmyhammer" / "workflows" / "w.yaml").write_text(yaml.safe_dump(WORKFLOW))
    assert sidecar(project, "flow", "run", "w").returncode == 0
    found = bundle(project)
    assert stat.S_IMODE((project / "b.tar.gz").stat().st_mode) == 0o600
    assert set(json.loads(found["versions.json"])) >= {"sidecar", "python", "system", "packages"}
    assert any(finding["topic"] == "database" for finding in json.loads(found["doctor.json"]))
    assert json.loads(found["settings.json"])["http_token"] == {
        "value": "********",
        "from": str(project / ".swissarmyhammer" / "config.yaml"),
    }
    (run,) = json.loads(found["journal.json"])
    assert (run["workflow"], run["status"], run["events"]["step_completed"]) == ("w", "completed", 3)
    assert "sidecar.db" in found["files.txt"]
    again = sidecar(project, "support-bundle", "-o", "b.tar.gz")
    assert again.returncode == 2
    assert "cannot write b.tar.gz: File exists" in again.stderr


def test_a_bundle_of_a_broken_project_says_what_is_broken(project: Path) -> None:
    (project / ".swissarmyhammer" / "config.yaml").write_text("no_such_setting: 1\n")
    (project / ".swissarmyhammer" / "sidecar.db").write_bytes(b"not a database, but long enough to look like one" * 99)
    found = bundle(project)
    assert "no_such_setting" in json.loads(found["settings.json"])["problem"]
    assert "sidecar.db" in json.loads(found["journal.json"])
