"""Metrics and traces of real runs: there when they are asked for, behind the door, and not even imported otherwise."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.kit import DEADLINE_S, SIDECAR, Forked, call, until
from tests.kit.collector import collecting

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "0123456789abcdef"
OPTIONAL = {"prometheus_client", "opentelemetry.sdk", "requests", "sidecar.notify.spans", "urllib.request"}
WITHOUT = """
import runpy, sys
sys.modules |= dict.fromkeys(["prometheus_client", "opentelemetry.sdk", "opentelemetry.exporter"])
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MISSING = "metrics and traces need packages that are not installed: pip install 'agent-sidecar[telemetry]'"
# Deaf to SIGTERM, and ready once it is.
DEAF = "trap '' TERM; touch deaf; while :; do sleep 0.05; done"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    workflows = tmp_path / ".swissarmyhammer" / "workflows"
    workflows.mkdir(parents=True)
    steps = [{"id": "first", "type": "shell_command", "command": "true"}, {"type": "shell_command", "command": DEAF}]
    (workflows / "deaf.yaml").write_text(yaml.safe_dump({"description": "d", "steps": steps}))
    (workflows / "short.yaml").write_text(yaml.safe_dump({"description": "s", "steps": steps[:1]}))
    return tmp_path


def sidecar(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return call(*arguments, cwd=project, **environment)


@contextmanager
def daemon(project: Path, extra: bool = True, /, **settings: Any) -> Iterator[str]:
    """A daemon with a web server: where that is. `extra`: the packages of the extra `telemetry` are installed."""
    (project / ".swissarmyhammer" / "config.yaml").write_text(yaml.safe_dump({"kill_after_s": 0.3, **settings}))
    log = project / "daemon.log"
    with log.open("w") as file:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
        command = [SIDECAR, "daemon", "--http", "0"]
        process: subprocess.Popen[Any] = (
            Forked(command, project, dict(os.environ), **streams)
            if extra
            else subprocess.Popen([sys.executable, "-c", WITHOUT, *command], cwd=project, **streams)
        )
    try:
        until(lambda: "is process" in log.read_text())
        (address,) = re.findall(r"MCP at (http://[^/]+)/mcp", log.read_text())
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
    assert all("message" in json.loads(line) for line in log.read_text().splitlines())


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=DEADLINE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def value(text: str, name: str, labels: str = "") -> float:
    """Of a sample with these labels and `project`, which all have, in any order."""
    expected = sorted(labels.split(",")) if labels else []
    samples = re.findall(rf"^sidecar_{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
    (found,) = (value for each, value in samples if sorted(re.findall(r'(?!project)\b\w+="[^"]*"', each)) == expected)
    return float(found)


def test_a_run_that_is_aborted_can_be_read_from_the_metrics(project: Path) -> None:
    with daemon(project, metrics=True, metrics_file="sidecar.prom") as address:
        assert sidecar(project, "flow", "run", "deaf", "--detach").returncode == 0
        until((project / "deaf").exists)
        assert value(get(f"{address}/metrics")[1], "agents") == 1
        assert sidecar(project, "abort", "enough", "--wait=60").returncode == 0
        text = until(lambda: (now := get(f"{address}/metrics")[1]) and 'status="aborted"} 1' in now and now)
    assert value(text, "steps_total", 'type="shell_command",outcome="completed"') == 1
    assert value(text, "runs", 'status="aborted"') == 1
    assert value(text, "runs_ended_total", 'status="aborted"') == 1
    assert value(text, "ladder_rungs_total", 'rung="kill"') == 1
    assert value(text, "survivors_total") == 0
    assert value(text, "agents") == 0
    assert value(text, "signal_noticed_seconds_count", 'signal="abort"') == 1
    assert value(text, "signal_applied_seconds_count", 'signal="abort"') == 1
    assert value(text, "signal_applied_seconds_sum", 'signal="abort"') >= 0.3  # the grace
    assert value((project / "sidecar.prom").read_text(), "runs_ended_total", 'status="aborted"') == 1


def test_metrics_are_behind_the_same_door_as_everything_else(project: Path) -> None:
    with daemon(project, metrics=True, http_token=TOKEN) as address:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert get(f"{address}/metrics")[0] == 401
        assert get(f"{address}/metrics", Authorization="Bearer wrong")[0] == 401
        assert get(f"{address}/metrics", **bearer, Host="evil.example")[0] == 421
        assert get(f"{address}/metrics", **bearer, Origin="http://evil.example")[0] == 403
        status, text = get(f"{address}/metrics", **bearer)
    assert status == 200
    assert value(text, "runs_here") == 0


def test_without_the_setting_there_are_none_and_whoever_can_call_is_warned_of(project: Path) -> None:
    with daemon(project) as address:
        assert get(f"{address}/metrics")[0] == 404
    assert "every user of this machine can call that" in (project / "daemon.log").read_text()


def hang_up(project: Path, **settings: Any) -> None:
    """Other settings, and SIGHUP."""
    (project / ".swissarmyhammer" / "config.yaml").write_text(yaml.safe_dump(settings))
    os.kill(int((project / ".swissarmyhammer" / "sidecar.lock").read_text()), signal.SIGHUP)


def reload(project: Path, **settings: Any) -> str:
    """Other settings, read again: what was logged of it."""
    log = project / "daemon.log"
    before = log.read_text()
    hang_up(project, **settings)
    until(lambda: "read the settings" in log.read_text()[len(before) :])
    return log.read_text()[len(before) :]


def test_the_settings_of_metrics_are_read_again(project: Path) -> None:
    with daemon(project) as address:
        assert sidecar(project, "flow", "run", "short", "--detach").returncode == 0
        until(lambda: '"status": "completed"' in sidecar(project, "status", "--json").stdout)
        assert get(f"{address}/metrics")[0] == 404
        reload(project, metrics=True, metrics_file="sidecar.prom")
        status, text = get(f"{address}/metrics")
        # Also what was before: a counter that begins in the middle would mislead whoever reads it.
        assert (status, value(text, "runs_ended_total", 'status="completed"')) == (200, 1)
        reload(project, metrics=False, metrics_file="later.prom")
        assert get(f"{address}/metrics")[0] == 404
    assert value((project / "later.prom").read_text(), "runs_started_total") == 1


def test_the_level_of_the_log_is_read_again(project: Path) -> None:
    log = project / "daemon.log"
    with daemon(project) as address:
        before = log.read_text()
        hang_up(project, log_level="error", metrics=True)
        until(lambda: get(f"{address}/metrics")[0] == 200)  # it says nothing of that any more
        assert sidecar(project, "flow", "run", "short", "--detach").returncode == 0
        until(lambda: '"status": "completed"' in sidecar(project, "status", "--json").stdout)
        assert log.read_text() == before
        reload(project, log_level="info")


def test_what_is_read_only_at_a_start_is_told_and_settings_that_are_wrong_change_nothing(project: Path) -> None:
    with daemon(project, metrics=True) as address:
        said = reload(project, metrics=True, http_token=TOKEN, watcher="polling")
        assert "changed, but read only when the daemon starts: watcher, http_token" in said
        assert get(f"{address}/metrics")[0] == 200
        hang_up(project, metrics="perhaps")
        until(lambda: "stay as they were" in (project / "daemon.log").read_text())
        assert get(f"{address}/metrics")[0] == 200


def imported(project: Path, **environment: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", SIDECAR, "flow", "run", "short"],
        cwd=project,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_what_is_off_is_not_even_imported(project: Path) -> None:
    assert "sidecar.notify.telemetry" in (without := imported(project))
    assert not OPTIONAL & without
    assert imported(project, SIDECAR_OTLP_ENDPOINT="http://127.0.0.1:9") > {"sidecar.notify.spans", "opentelemetry.sdk"}


def test_without_the_packages_a_run_completes_and_one_line_names_what_to_install(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, SIDECAR, "flow", "run", "short"],
        cwd=project,
        env={**os.environ, "SIDECAR_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "install" in line] == [f"sidecar: {MISSING}"]
    assert "Traceback" not in done.stderr


def test_without_the_packages_a_daemon_serves_on_and_one_line_names_what_to_install(project: Path) -> None:
    with daemon(project, False, metrics=True, metrics_file="sidecar.prom") as address:
        assert get(f"{address}/metrics")[0] == 404
        assert sidecar(project, "flow", "run", "short", "--detach").returncode == 0
        until(lambda: '"status": "completed"' in sidecar(project, "status", "--json").stdout)
    assert (project / "daemon.log").read_text().count("pip install 'agent-sidecar[telemetry]'") == 1
    assert not (project / "sidecar.prom").exists()


def test_spans_of_a_run_and_its_steps_reach_the_collector(project: Path) -> None:
    (project / ".swissarmyhammer" / "config.yaml").write_text(
        yaml.safe_dump({"otlp_endpoint": "$WHERE", "otlp_headers": {"X-Key": "$KEY", "X-Plain": "plain"}})
    )
    with collecting() as collector:
        done = sidecar(project, "flow", "run", "short", WHERE=f"{collector.url}/", KEY="a-key")
    assert (done.returncode, done.stderr) == (0, "")
    path, headers, _ = collector.requests[0]
    assert path == "/v1/traces"
    assert (headers["content-type"], headers["x-key"], headers["x-plain"]) == (
        "application/x-protobuf",
        "a-key",
        "plain",
    )
    assert collector.resource["service.name"] == "sidecar"
    spans = {span["name"]: span for span in collector.spans}
    assert set(spans) >= {"run short", "shell_command first"}
    assert spans["shell_command first"]["parentSpanId"] == spans["run short"]["spanId"]
    assert len({span["traceId"] for span in spans.values()}) == 1


def test_a_collector_that_is_away_costs_the_run_nothing_but_a_remark(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    done = sidecar(project, "flow", "run", "short", SIDECAR_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
    assert done.returncode == 0
    assert done.stderr.count("spans do not arrive") == 1


def test_a_variable_that_is_missing_is_told_and_the_run_goes_on(project: Path) -> None:
    done = sidecar(project, "flow", "run", "short", SIDECAR_OTLP_ENDPOINT="$NOT_THERE")
    assert done.returncode == 0
    assert "tracing needs the variable NOT_THERE" in done.stderr
