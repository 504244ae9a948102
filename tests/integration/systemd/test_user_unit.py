"""A person's own unit, and the examples that start work by a file or a schedule, in a real user manager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.systemd.conftest import Project

    NewProject = Callable[[str], Project]

UNITS = Path(__file__).parents[3] / "systemd"
HOME = "/home/builder"
OWN_UNITS = f"{HOME}/.config/systemd/user"
WORKING = "echo $$ >> begun; until test -e go; do sleep 0.05; done; echo done >> ended"


@pytest.fixture(scope="module")
def service(new_project: NewProject) -> Project:
    project = new_project("a-user's-project")
    project.workflow("work", {"id": "a", "type": "shell_command", "command": WORKING})
    project.workflow("nightly", {"id": "a", "type": "shell_command", "command": "echo $$ >> nights"})
    assert "loginctl enable-linger" in project.install(user=True)
    return project


def test_a_person_has_a_daemon_that_contains_agents_and_comes_back(service: Project) -> None:
    assert service.shown("StatusText") == f"serving {service.inside}: no run"
    (run_id,) = service.detached("work")
    service.until(lambda: service.words("begun"))
    before = service.main_pid()
    groups = service.machine.run("find", f"/sys/fs/cgroup{service.shown('ControlGroup')}", "-name", "sidecar-*")
    assert service.words("begun")[0] in service.machine.run("cat", f"{groups.strip()}/cgroup.procs").split()
    service.machine.run("kill", "-KILL", str(before))
    service.until(lambda: len(service.words("begun")) == 2)
    assert service.main_pid() not in (0, before)
    service.systemctl("reload")
    service.until(lambda: f"read the settings of {service.inside} again" in log(service))
    (service.root / "go").touch()
    service.until_status(run_id, "completed")


def log(service: Project) -> str:
    """The machine keeps no journal on a disk, and so none that a person may read."""
    return service.machine.run("journalctl", "--no-pager", f"_SYSTEMD_USER_UNIT={service.unit}")


def test_a_file_and_a_timer_start_work(service: Project) -> None:
    machine = service.machine
    program = Path(sys.executable).with_name("sidecar")
    machine.run("install", "-d", "-o", "builder", f"{HOME}/.local/bin")
    machine.run("ln", "-s", str(program), f"{HOME}/.local/bin/sidecar")
    for name in ("sidecar-flow@.service", "sidecar-flow@.path", "sidecar-flow@.timer"):
        machine.run("install", "-m", "644", "-o", "builder", str(UNITS / name), f"{OWN_UNITS}/{name}")
    instance = service.unit.removeprefix("sidecar@").removesuffix(".service")
    service.machine.run("sh", "-euc", user_systemctl("daemon-reload"), user="builder")
    service.machine.run("sh", "-euc", user_systemctl("start", f"sidecar-flow@{instance}.path"), user="builder")
    for count in (1, 2):
        service.write(".swissarmyhammer/start-nightly", "")
        until_nights(service, count)
        assert not (service.own / "start-nightly").exists()
    # The same timer, with a schedule that does not keep a test waiting.
    drop_in = f"{OWN_UNITS}/sidecar-flow@.timer.d"
    soon = "[Timer]\nOnCalendar=\nOnActiveSec=1\nRandomizedDelaySec=0\nAccuracySec=10ms\n"
    machine.run("sh", "-euc", 'mkdir -p "$0" && printf "$1" > "$0"/soon.conf', drop_in, soon, user="builder")
    service.machine.run("sh", "-euc", user_systemctl("daemon-reload"), user="builder")
    service.machine.run("sh", "-euc", user_systemctl("start", f"sidecar-flow@{instance}.timer"), user="builder")
    until_nights(service, 3)
    machine.run("sh", "-euc", f"rm -r {OWN_UNITS}/sidecar-flow@*", user="builder")
    service.until(lambda: {run["status"] for run in service.runs()} == {"completed"})


def until_nights(service: Project, count: int) -> None:
    service.until(lambda: len(service.words("nights")) == count)


def user_systemctl(*arguments: str) -> str:
    words = " ".join(f"'{word}'" for word in arguments)
    return f"XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user {words}"


def test_uninstalled_it_leaves_nothing(service: Project) -> None:
    assert "removed" in service.service("uninstall")
    assert service.machine.run("find", f"{HOME}/.config", "-path", "*systemd*") == ""
    assert service.shown("LoadState") == "not-found"
    assert not [line for line in service.machine.processes("builder") if "sidecar" in line]
