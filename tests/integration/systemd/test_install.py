"""`sidecar service install` and `uninstall` with a real systemd: again, after changes by hand, and without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.systemd.conftest import Machine, Project

    NewProject = Callable[[str], Project]

UNITS = "/etc/systemd/system"


@pytest.fixture
def project(new_project: NewProject, request: pytest.FixtureRequest) -> Project:
    return new_project(f"project-{request.node.name[:40]}")


def everything(machine: Machine) -> set[str]:
    """Every file of a manager or a person, wherever one could be left."""
    places = (UNITS, "/run/systemd/system", "/home", "/root/.config", "/var/lib/systemd")
    return set(machine.run("sh", "-c", f"find {' '.join(places)} 2>/dev/null", code=None).splitlines())


def test_installed_twice_it_goes_on_and_uninstalled_twice_it_leaves_nothing(project: Project) -> None:
    machine = project.machine
    before = everything(machine)
    told = project.service("install", "--print")
    assert everything(machine) == before
    assert f"{UNITS}/{project.unit} would have this content" in told
    project.install()
    assert everything(machine) - before == {
        f"{UNITS}/{project.unit}",
        f"{UNITS}/multi-user.target.wants/{project.unit}",
    }
    main = project.main_pid()
    assert "stays as it is" in project.install()  # and nothing is restarted
    assert project.main_pid() == main
    project.service("uninstall")
    assert everything(machine) == before
    assert project.shown("LoadState") == "not-found"
    assert machine.processes("builder") == []
    assert "is not installed" in project.service("uninstall")
    assert "is not installed" in project.service("status", code=2)


def test_a_unit_that_was_changed_by_hand_is_never_lost(project: Project) -> None:
    machine = project.machine
    path = f"{UNITS}/{project.unit}"
    project.install()
    before = project.main_pid()
    machine.run("sed", "-i", "s/^WatchdogSec=.*/WatchdogSec=77/", path)
    assert "edited by hand" in project.service("status")
    told = project.install()
    assert "is in" in told
    (backup,) = machine.run("find", UNITS, "-name", "*.backup*").splitlines()
    assert backup in told
    assert "WatchdogSec=77" in machine.run("cat", backup)
    assert "WatchdogSec=77" not in machine.run("cat", path)
    assert project.main_pid() not in (0, before)  # it runs as the file says
    assert "as installed" in project.service("status")
    machine.run("rm", backup)

    machine.run("sed", "-i", "s/^WatchdogSec=.*/WatchdogSec=78/", path)
    told = project.service("uninstall")
    (backup,) = machine.run("find", UNITS, "-name", "*.backup*").splitlines()
    assert backup in told
    assert "WatchdogSec=78" in machine.run("cat", backup)
    machine.run("rm", backup)


def test_a_project_of_root_can_be_served_by_somebody_else_who_stays_the_one(project: Project) -> None:
    machine, own = project.machine, f"{project.inside}/.swissarmyhammer"
    machine.run("chown", "-R", "root:", project.inside)
    before = everything(machine)
    told = machine.sidecar(project, "service", "install", "--system", "--run-as", "builder", code=2)
    assert f"chown -R builder: {own}" in told
    assert everything(machine) == before
    machine.run("chown", "-R", "builder:", own)
    assert "as root" not in project.install("--run-as", "builder")
    assert project.shown("User") == "builder"
    assert any("daemon --project" in line for line in machine.processes("builder"))
    main = project.main_pid()
    assert "as installed" in project.service("status")
    assert "stays as it is" in project.install()
    assert (project.main_pid(), project.shown("User")) == (main, "builder")


def test_a_project_of_root_is_served_by_root_with_a_warning_that_names_the_way_out(project: Project) -> None:
    project.machine.run("chown", "-R", "root:", project.inside)
    told = project.install()
    assert f"chown -R NAME: {project.inside} && sidecar --project {project.inside} service install" in told
    assert "--run-as NAME" in told
    assert project.shown("User") == "root"
    project.machine.run("chown", "-R", "builder:", project.inside)
    assert "as root" not in project.install()
    assert project.shown("User") == "builder"


def test_only_root_can_install_for_the_system_and_without_a_login_there_is_no_manager(project: Project) -> None:
    before = everything(project.machine)
    assert "only root" in project.sidecar("service", "install", "--system", code=2)
    stranger = project.machine.sidecar(project, "service", "install", "--user", user="stranger", code=2)
    assert "you have no service manager here" in stranger
    assert everything(project.machine) == before
