"""The system's unit in a real systemd: what it promises to an administrator, from READY to the last process."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.systemd.conftest import Project

    NewProject = Callable[[str], Project]

HOOKS = Path(__file__).parent / "programs" / "hooks"
# Is at work until somebody makes the file `go`, and says that it began.
WORKING = "echo $$ >> begun; until test -e go; do sleep 0.05; done; echo done >> ended"
# Does not care about SIGTERM.
DEAF = "trap '' TERM; echo $$ >> begun; while :; do sleep 0.05; done"
AT_WORK = 20
# What coding agents do all day. Each line says what could not be done.
DAILY_WORK = r"""
try() { "$@" >/dev/null 2>err || { echo "$*: $(cat err)" >> cannot; }; }
refuse() { "$@" >/dev/null 2>&1 && echo "$* was not refused" >> cannot; }
rm -rf repo cannot; : > cannot
try git init -q repo
try git -C repo -c user.name=a -c user.email=a@b commit -q --allow-empty -m first
try chmod g+s repo
try node -e 'for (let i = 0, f = x => x * 2; i < 1e5; i++) f(i)'
try sh -c 'echo x > /tmp/by-an-agent && echo x > "$HOME"/.by-an-agent && echo x > /var/tmp/by-an-agent'
try python3 -c 'import socket, pty; [socket.socket(*each) for each in ((2, 1), (10, 1), (16, 3))]; pty.openpty()'
try unshare --user --map-root-user --mount --pid --net --ipc --uts --fork mount -t tmpfs tmpfs /mnt
try mkfifo repo/fifo
refuse touch /usr/by-an-agent
refuse touch /etc/by-an-agent
refuse mount -t tmpfs tmpfs /mnt
refuse unshare --user --map-root-user --cgroup true
cat /proc/self/mountinfo > mounts
grep -E '^(Cap|NoNewPrivs)' /proc/self/status > rights
cat /proc/self/cgroup > cgroup
env | cut -d= -f1 > variables
"""


@pytest.fixture(scope="module")
def service(new_project: NewProject) -> Project:
    """A project whose service is installed and runs."""
    project = new_project("a project of 100% & $HOME")
    project.workflow("work", {"id": "a", "type": "shell_command", "command": WORKING})
    project.workflow("deaf", {"id": "a", "type": "shell_command", "command": DEAF})
    project.workflow("daily", {"id": "a", "type": "shell_command", "command": DAILY_WORK})
    shutil.copytree(HOOKS, project.machine.share / "hooks", ignore=shutil.ignore_patterns("__pycache__"))
    project.install()
    return project


@pytest.fixture(scope="module")
def impatient(service: Project) -> None:
    """The watchdog waits for 6 seconds only, and there are ways to hang."""
    service.drop_in("Environment=PYTHONPATH=/share/hooks", "WatchdogSec=6")
    service.systemctl("restart")


@pytest.fixture
def at_work(service: Project) -> tuple[Project, str]:
    """With a run that waits to be let go."""
    for name in ("begun", "go", "ended"):
        (service.root / name).unlink(missing_ok=True)
    (run_id,) = service.detached("work")
    service.until(lambda: service.words("begun"))
    return service, run_id


def finish(project: Project, *run_ids: str) -> None:
    (project.root / "go").touch()
    for run_id in run_ids:
        project.until_status(run_id, "completed")
    project.until(lambda: project.shown("StatusText").endswith("no run"))


def test_when_it_is_started_it_serves(service: Project) -> None:
    assert (service.shown("ActiveState"), service.shown("SubState")) == ("active", "running")
    assert service.shown("StatusText") == f"serving {service.inside}: no run"
    assert service.shown("UnitFileState") == "enabled"
    assert service.shown("Type") == "notify"
    assert json.loads(service.sidecar("status", "--json")) == {"runs": []}
    assert (
        service.machine.run("stat", "-c", "%U %a", f"{service.inside}/.swissarmyhammer/sidecar.sock") == "builder 600\n"
    )
    told = service.service("status")
    assert f"/etc/systemd/system/{service.unit}: as installed" in told
    assert "active (running)" in told
    assert f"serving {service.inside}: no run" in told


def test_the_status_line_says_what_is_at_work_and_agents_have_cgroups_of_their_own(
    at_work: tuple[Project, str],
) -> None:
    service, run_id = at_work
    service.until(lambda: service.shown("StatusText") == f"serving {service.inside}: 1 run with 1 process")
    groups = service.machine.run(
        "find", f"/sys/fs/cgroup{service.shown('ControlGroup')}", "-mindepth", "1", "-type", "d"
    )
    assert len(groups.splitlines()) == 1
    worker = service.words("begun")[0]
    assert worker in service.machine.run("cat", f"{groups.strip()}/cgroup.procs").split()
    finish(service, run_id)


def test_agents_can_do_their_daily_work_and_no_harm_to_the_system(service: Project) -> None:
    (run_id,) = service.detached("daily")
    service.until_status(run_id, "completed")
    assert (service.root / "cannot").read_text() == ""
    rights = dict(line.split(":\t") for line in (service.root / "rights").read_text().splitlines())
    none = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    assert rights == {**none, "NoNewPrivs": "1"}
    # A mount over a part of /proc would forbid every sandbox to mount a /proc of its own.
    inside, outside = (
        {line.split()[4] for line in text.splitlines() if line.split()[4].startswith("/proc")}
        for text in ((service.root / "mounts").read_text(), service.machine.run("cat", "/proc/1/mountinfo"))
    )
    assert inside == outside
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(service.words("variables"))


def test_a_reload_reads_the_settings_again_and_interrupts_nobody(at_work: tuple[Project, str]) -> None:
    service, run_id = at_work
    before = service.main_pid()
    service.write(".swissarmyhammer/config.yaml", "kill_after_s: 2\n")
    service.systemctl("reload")
    service.until(lambda: f"read the settings of {service.inside} again" in service.log())
    assert service.shown("ActiveState") == "active"
    assert service.main_pid() == before
    assert service.runs()[0]["status"] == "running"
    finish(service, run_id)


def test_a_stop_leaves_no_process_and_the_next_start_resumes(at_work: tuple[Project, str]) -> None:
    service, run_id = at_work
    service.systemctl("stop")
    assert (service.shown("ActiveState"), service.shown("Result")) == ("inactive", "success")
    assert service.machine.processes("builder") == []
    assert service.runs()[0]["status"] == "interrupted"
    assert "inactive (dead)" in service.service("status", code=2)
    service.systemctl("start")
    service.until(lambda: len(service.words("begun")) == 2)
    finish(service, run_id)
    assert service.words("ended") == ["done"]


def test_a_ladder_that_is_longer_than_the_stop_timeout_is_not_cut(service: Project) -> None:
    service.write(".swissarmyhammer/config.yaml", "kill_after_s: 3\n")
    service.drop_in("TimeoutStopSec=1")
    service.systemctl("reload")
    (service.root / "begun").unlink(missing_ok=True)
    (run_id,) = service.detached("deaf")
    service.until(lambda: service.words("begun"))
    service.systemctl("stop")
    assert (service.shown("ActiveState"), service.shown("Result")) == ("inactive", "success")
    (run,) = [run for run in service.runs() if run["run_id"] == run_id]
    assert run["status"] == "interrupted"  # by the daemon, which therefore was still there
    assert service.machine.processes("builder") == []
    service.drop_in()
    service.machine.sidecar(service, "abort", "no more", "--run", run_id, user="builder")
    service.systemctl("start")
    service.until_status(run_id, "aborted")


def test_after_kill_9_it_is_restarted_and_every_run_resumed_and_nothing_is_left(
    service: Project, record_property: Callable[[str, object], None]
) -> None:
    for name in ("begun", "go", "ended"):
        (service.root / name).unlink(missing_ok=True)
    run_ids = service.detached("work", AT_WORK)
    service.until(lambda: len(service.words("begun")) == AT_WORK)
    before, restarts = service.main_pid(), int(service.shown("NRestarts"))
    service.machine.run("kill", "-KILL", str(before))
    killed_at = time.monotonic()
    service.until(lambda: len(service.words("begun")) == 2 * AT_WORK)
    record_property("seconds_until_all_were_resumed", time.monotonic() - killed_at)
    assert service.main_pid() != before
    assert int(service.shown("NRestarts")) == restarts + 1
    # Leaders of a session: what a worker has just forked, and is not `sleep` yet, bears its command too.
    workers = [line for line in service.machine.processes("builder") if "begun" in line and "s" in line.split()[0]]
    assert len(workers) == AT_WORK
    statuses = {run["run_id"]: run["status"] for run in service.runs()}
    assert {statuses[run_id] for run_id in run_ids} == {"running"}
    finish(service, *run_ids)
    assert service.words("ended") == ["done"] * AT_WORK


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2], ids=["all of it", "only its watcher"])
def test_the_watchdog_restarts_a_daemon_that_hangs(at_work: tuple[Project, str], number: signal.Signals) -> None:
    service, run_id = at_work
    before = service.main_pid()
    service.machine.run("kill", f"-{int(number)}", str(before))
    service.until(lambda: service.main_pid() not in (0, before) and service.shown("ActiveState") == "active")
    log = service.log()
    assert "Watchdog timeout" in log
    assert "Fatal Python error: Aborted" in log  # and behind it, where it hung
    service.until(lambda: len(service.words("begun")) > 1)
    finish(service, run_id)


def test_what_it_says_and_how_it_goes_on_is_in_the_logs(service: Project) -> None:
    log = service.log()
    assert f"the daemon of {service.inside} is process {service.main_pid()}" in log
    assert re.search(r"resumed run \w{26} \(work\)", log)
