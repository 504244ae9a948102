"""Signals to a service from others on the machine: who may write to a workspace may stop its runs, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.systemd.conftest import Project

    NewProject = Callable[[str], Project]

# Iterates until it is stopped, slowly enough that nothing but a stop ends it.
STEPS = {
    "id": "loop",
    "type": "while",
    "condition": "true",
    "max_iterations": 100000,
    "body": [{"id": "a", "type": "shell_command", "command": "echo $$ >> begun; sleep 0.1"}],
}


@pytest.fixture(scope="module")
def service(new_project: NewProject) -> Project:
    """A service of the builder's; the group `ops` may write to the workspace, and only there."""
    project = new_project("project-of-a-team")
    project.workflow("loop", STEPS)
    project.machine.run("chmod", "755", project.inside)
    workspace = f"{project.inside}/.swissarmyhammer/workspaces/nightly"
    project.machine.run("install", "-d", "-o", "builder", f"{project.inside}/.swissarmyhammer/workspaces")
    project.machine.run("install", "-d", "-m", "2770", "-o", "builder", "-g", "ops", workspace)
    project.install()
    return project


@pytest.fixture
def run_id(service: Project) -> str:
    (service.root / "begun").unlink(missing_ok=True)
    (run_id,) = service.detached("loop", workspace="nightly")
    service.until(lambda: service.words("begun"))
    return run_id


def workspace(service: Project) -> str:
    return f"{service.inside}/.swissarmyhammer/workspaces/nightly"


def stopped(service: Project, run_id: str) -> None:
    assert service.until_status(run_id, "stopped")
    service.until(lambda: not (service.own / "workspaces" / "nightly" / ".stop").exists())


def test_a_touch_by_somebody_who_may_write_there_stops_the_run(service: Project, run_id: str) -> None:
    service.machine.run("touch", f"{workspace(service)}/.stop", user="operator")
    stopped(service, run_id)


def test_a_touch_through_a_bind_mount_does_too(service: Project, run_id: str) -> None:
    service.machine.run("mkdir", "-p", "/mnt/elsewhere")
    service.machine.run("mount", "--bind", workspace(service), "/mnt/elsewhere")
    service.machine.run("touch", "/mnt/elsewhere/.stop", user="operator")
    stopped(service, run_id)
    service.machine.run("umount", "/mnt/elsewhere")


def test_whoever_may_not_write_there_is_refused_and_the_run_goes_on(service: Project, run_id: str) -> None:
    stop = f"{workspace(service)}/.stop"
    assert "Permission denied" in service.machine.run("touch", stop, user="stranger", code=1)
    told = service.machine.sidecar(service, "stop", "nightly", user="stranger", code=1)
    assert "ermission denied" in told or "not found" in told
    for scope in (["--run", run_id], ["--all"]):
        told = service.machine.sidecar(service, "stop", *scope, user="operator", code=1)
        assert "ermission denied" in told
    iterations = len(service.words("begun"))
    service.until(lambda: len(service.words("begun")) > iterations + 2)
    service.machine.run("touch", stop, user="operator")
    stopped(service, run_id)


def test_who_stops_it_with_wait_gets_the_proof(service: Project, run_id: str) -> None:
    told = service.machine.sidecar(service, "stop", "nightly", "--wait", user="operator")
    assert f"Applied: run {run_id} stopped" in told
    stopped(service, run_id)


def test_what_steps_write_can_be_read_by_those_who_share_the_project(service: Project, run_id: str) -> None:
    assert service.machine.run("cat", f"{service.inside}/begun", user="operator").split()
    service.machine.run("touch", f"{workspace(service)}/.stop", user="operator")
    stopped(service, run_id)


def test_who_may_not_read_which_runs_are_open_gets_no_proof(service: Project, run_id: str) -> None:
    index = f"{service.inside}/.swissarmyhammer/open"
    service.machine.run("chmod", "700", index)
    try:
        told = service.machine.sidecar(service, "stop", "nightly", "--wait", user="operator", code=4)
        assert "cannot read which runs are open" in told
        stopped(service, run_id)
    finally:
        service.machine.run("chmod", "755", index)
