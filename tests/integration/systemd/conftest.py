"""A machine with a systemd of its own, booted once for all tests here, and projects on it with their services."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.service.status import describe_all
from sidecar.service.units import escaped_path
from sidecar.store.db import open_database
from tests.kit import DEADLINE_S, mcp_client, until

CHECKOUT = Path(__file__).parents[3]
BOOT = Path(__file__).parent / "programs" / "machine.sh"
UNSHARE = ["unshare", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--net", "--fork", "--kill-child"]
# The people on the machine. `ops` is a group of two of them.
PEOPLE = {"builder": 4001, "operator": 4002, "stranger": 4003}
OPS = 4100


class Machine:
    """A booted one; commands run inside it."""

    def __init__(self, directory: Path, cgroup: Path) -> None:
        self._directory = directory
        self._cgroup = cgroup
        self.share = directory / "share"
        needed = [str(CHECKOUT), sys.prefix, sys.base_prefix]
        self._console = directory / "console.log"
        with self._console.open("w") as console:
            enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(cgroup)]
            self._outer = subprocess.Popen(
                [*enter, *UNSHARE, "--propagation", "private", "sh", str(BOOT), str(directory), *needed],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
            )
        try:
            self._pid = until(self._first_process)
            until(lambda: "running" in self.run("systemctl", "is-system-running", code=None))
            self._settle()
        except BaseException as error:
            error.add_note(self._console.read_text())
            self.close()
            raise

    def _first_process(self) -> int | None:
        assert self._outer.poll() is None, self._console.read_text()
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        for child in map(int, children):
            with suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                    return child
        return None

    def _settle(self) -> None:
        """People move in."""
        lines = [f'echo "{name}:*:{uid}:{uid}::/home/{name}:/bin/sh" >> /etc/passwd' for name, uid in PEOPLE.items()]
        lines += [f'echo "{name}:x:{uid}:" >> /etc/group' for name, uid in PEOPLE.items()]
        lines += [f"install -d -m 750 -o {uid} -g {uid} /home/{name}" for name, uid in PEOPLE.items()]
        lines += [f'echo "ops:x:{OPS}:builder,operator" >> /etc/group']
        self.run("sh", "-euc", "\n".join(lines))

    def run(self, *command: str, user: str | None = None, cwd: str = "/", code: int | None = 0) -> str:
        """What a command inside prints on both streams; its exit code has to be this one, if any."""
        whole = ["nsenter", "-t", str(self._pid), "-m", "-p", "-C", "-i", "-u", "-n", "-r", "-w", "--"]
        home = f"/home/{user}" if user else "/root"
        whole += ["runuser", "-u", user, "--"] if user else []
        whole += ["env", "-i", "-C", cwd, f"HOME={home}", f"PATH={Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin"]
        whole += ["LANG=C.UTF-8", *command]
        done = subprocess.run(
            whole, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False
        )
        told = done.stdout.decode(errors="replace")
        assert code is None or done.returncode == code, (command, done.returncode, told)
        return told

    def sidecar(self, project: Project, *arguments: str, user: str | None = None, code: int | None = 0) -> str:
        return self.run(sys.executable, "-m", "sidecar", *arguments, user=user, cwd=project.inside, code=code)

    def processes(self, user: str) -> list[str]:
        """What runs as somebody: command lines, but for what waits to be reaped."""
        listed = self.run("ps", "-u", user, "-o", "stat=,args=", code=None)
        return [line for line in listed.splitlines() if not line.startswith("Z")]

    def close(self) -> None:
        """Its first process dies, and so does everybody in it."""
        with suppress(OSError):
            (self._cgroup / "cgroup.kill").write_text("1")
        self._outer.kill()
        self._outer.wait(DEADLINE_S)
        until(lambda: _removed(self._cgroup))


class Project:
    """A project on the machine, and its service."""

    def __init__(self, machine: Machine, name: str, owner: str) -> None:
        self.machine = machine
        self.owner = owner
        self.inside = f"/share/{name}"
        self.root = machine.share / name
        self.own = self.root / ".swissarmyhammer"
        (self.own / "workflows").mkdir(parents=True)
        self._given_to_owner()
        self.unit = f"sidecar@{escaped_path(self.inside)}.service"
        self.user_unit = False

    def _given_to_owner(self) -> None:
        self.machine.run("chown", "-R", f"{self.owner}:", self.inside)

    def workflow(self, name: str, *steps: dict[str, Any], **more: Any) -> None:
        content = {"description": name, **more, "steps": list(steps)}
        (self.own / "workflows" / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def write(self, name: str, text: str) -> Path:
        """A file of the owner's."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self._given_to_owner()
        return path

    def sidecar(self, *arguments: str, code: int | None = 0) -> str:
        """A command of the owner's."""
        return self.machine.sidecar(self, *arguments, user=self.owner, code=code)

    @staticmethod
    def until(what: Callable[[], Any]) -> Any:
        return until(what)

    # --- its service

    def install(self, *arguments: str, user: bool = False) -> str:
        """`sidecar service install`; it has begun by then."""
        self.user_unit = user
        if user:
            self.machine.run("systemctl", "start", f"user@{PEOPLE[self.owner]}.service")
            return self.sidecar("service", "install", "--user", *arguments)
        return self.machine.sidecar(self, "service", "install", "--system", *arguments)

    def service(self, action: str, *arguments: str, code: int | None = 0) -> str:
        person = self.owner if self.user_unit else None
        scope = "--user" if self.user_unit else "--system"
        return self.machine.sidecar(self, "service", action, scope, *arguments, user=person, code=code)

    def systemctl(self, *arguments: str, code: int | None = 0) -> str:
        if not self.user_unit:
            return self.machine.run("systemctl", *arguments, self.unit, code=code)
        uid = PEOPLE[self.owner]
        way = ["env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "systemctl", "--user"]
        return self.machine.run(*way, *arguments, self.unit, user=self.owner, code=code)

    def drop_in(self, *lines: str) -> None:
        """Settings of the administrator's, in force from the next start on."""
        directory = f"/run/systemd/system/{self.unit}.d"
        text = "\n".join(["[Service]", *lines])
        self.machine.run("sh", "-euc", 'mkdir -p "$0" && echo "$1" > "$0"/test.conf', directory, text)
        self.machine.run("systemctl", "daemon-reload")

    def shown(self, name: str) -> str:
        """One property of the unit."""
        return self.systemctl("show", "--value", "--property", name).strip()

    def main_pid(self) -> int:
        return int(self.shown("MainPID"))

    def log(self) -> str:
        return self.service("logs", "-n", "1000")

    # --- its runs

    def runs(self) -> list[dict[str, Any]]:
        """As `status --json` has them, without the cost of starting it."""
        with open_database(str(self.root)) as database:
            return describe_all(database, str(self.root))

    def detached(self, workflow: str, count: int = 1, **more: str) -> list[str]:
        """The ids of new runs, begun by the daemon: asked over its socket, without the cost of starting a client."""
        with mcp_client.at_socket(self.own / "sidecar.sock") as client:
            client.hello()
            asked = {"flow_name": workflow, "detach": True, **more}
            return [client.use("flow", **asked)["run_id"] for _ in range(count)]

    def until_status(self, run_id: str, status: str) -> dict[str, Any]:
        def seen() -> dict[str, Any] | None:
            return next((run for run in self.runs() if (run["run_id"], run["status"]) == (run_id, status)), None)

        found: dict[str, Any] = until(seen)
        return found

    def words(self, name: str) -> list[str]:
        """What steps have written into a file so far."""
        path = self.root / name
        return path.read_text().split() if path.exists() else []

    def gone(self) -> None:
        """Away with it, whatever is left of it."""
        self.systemctl("kill", "--signal=KILL", code=None)
        self.service("uninstall", code=None)
        self.systemctl("reset-failed", code=None)
        self.machine.run("rm", "-rf", f"/run/systemd/system/{self.unit}.d")
        shutil.rmtree(self.root)


def _removed(cgroup: Path) -> bool:
    for directory, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            os.rmdir(directory)
    return not cgroup.exists()


def _cgroup() -> Path:
    """A fresh group for the machine: inside, it is the root of all."""
    unified = Path("/sys/fs/cgroup/unified")
    top = unified if (unified / "cgroup.procs").exists() else Path("/sys/fs/cgroup")
    made = top / f"sidecar-test-machine-{os.getpid()}"
    made.mkdir()
    return made


def _why_not(directory: Path) -> str | None:
    """Why there can be no such machine here; None where there can."""
    if sys.platform != "linux":
        return "systemd is Linux's"
    if os.geteuid() != 0:
        return "only root can make the namespaces that a machine of its own takes"
    missing = [name for name in ("unshare", "nsenter", "runuser", "systemctl") if shutil.which(name) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    try:
        cgroup = _cgroup()
    except OSError as error:
        return f"no cgroup can be made: {error}"
    if not (cgroup / "cgroup.kill").exists():
        cgroup.rmdir()
        return "there is no cgroup v2 with cgroup.kill"
    cgroup.rmdir()
    tried = subprocess.run(
        [*UNSHARE, "--propagation", "private", "sh", str(BOOT), str(directory), "--only-try"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else None


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("machine")
    reason = _why_not(directory)
    if reason is not None:
        pytest.skip(reason)
    booted = Machine(directory, _cgroup())
    yield booted
    booted.close()


@pytest.fixture(scope="module")
def new_project(machine: Machine) -> Iterator[Callable[[str], Project]]:
    """Makes projects of the builder's, which go with the module."""
    made: list[Project] = []

    def make(name: str) -> Project:
        made.append(Project(machine, name, "builder"))
        return made[-1]

    yield make
    for each in made:
        each.gone()
