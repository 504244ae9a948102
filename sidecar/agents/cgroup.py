"""A control group of its own for an agent: the kernel keeps the list, and kills all of it in one write.

Standard library only: the sentinel kills groups too.
"""

from __future__ import annotations

import os
import subprocess
import time

PREFIX = "sidecar-"
_PROBE_TIMEOUT_S = 5
_LEFT_BEHIND_S = 600.0


def own() -> str | None:
    """The directory of the version 2 group that this process is in, also on hybrid machines."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            groups = [line[3:].rstrip("\n") for line in file if line.startswith("0::")]
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file if " - cgroup2 " in line]
    except OSError:
        return None
    for mount in mounts:
        top, at = mount[3], mount[4]
        for group in groups:
            inside = os.path.relpath(group, top)
            if not inside.startswith(".."):
                return os.path.normpath(os.path.join(at, inside))
    return None


def why_not() -> str | None:
    """Why groups cannot be used here, found out by using one; None where they can."""
    base = own()
    if base is None:
        return "no cgroup v2 is mounted here"
    probe = os.path.join(base, f"{PREFIX}probe-{os.getpid()}")
    try:
        os.mkdir(probe)
    except OSError as error:
        return f"the cgroup {base} is not delegated to this user ({error.strerror})"
    try:
        if not os.access(os.path.join(probe, "cgroup.kill"), os.W_OK):
            return "this kernel has no cgroup.kill (Linux 5.14 has)"
        # There and back, as the sentinel goes for each agent: only doing it shows whether it is allowed.
        script = 'echo 0 > "$1/cgroup.procs" && echo 0 > "$2/cgroup.procs"'
        moved = subprocess.run(  # noqa: S603
            ["/bin/sh", "-c", script, "sh", probe, base], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
        if moved.returncode:
            return f"processes cannot be moved below the cgroup {base}"
    except (OSError, subprocess.SubprocessError) as error:
        return f"the cgroup {base} cannot be used ({error})"
    finally:
        remove(probe)
    return None


def create(base: str, agent_id: str) -> str:
    """A fresh group for one agent."""
    path = os.path.join(base, PREFIX + agent_id)
    os.mkdir(path)
    return path


def enter(path: str) -> None:
    """Move this process into a group."""
    file = os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, b"0")
    finally:
        os.close(file)


def pids(path: str) -> list[int]:
    """The processes in the group and in the groups that its members made below it."""
    found: list[int] = []
    for directory, _, names in os.walk(path):
        if "cgroup.procs" in names:
            try:
                with open(os.path.join(directory, "cgroup.procs"), encoding="ascii") as file:
                    # 0 stands for a process in a pid namespace that we do not see into.
                    found += [int(line) for line in file if line != "0\n"]
            except OSError:  # gone since, or a threaded group, whose members its parent lists
                continue
    return found


def is_populated(path: str) -> bool:
    """Whether a process lives in the group or below it."""
    try:
        with open(os.path.join(path, "cgroup.events"), encoding="ascii") as file:
            return "populated 1\n" in file.read()
    except OSError:
        return False


def kill(path: str) -> bool:
    """Kill all processes in the group, the ones being born included."""
    try:
        file = os.open(os.path.join(path, "cgroup.kill"), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(file, b"1")
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def sweep(base: str) -> None:
    """Remove empty groups that killed owners left behind; young ones may be about to be entered."""
    try:
        names = [name for name in os.listdir(base) if name.startswith(PREFIX)]
    except OSError:
        return
    for path in (os.path.join(base, name) for name in names):
        try:
            old = time.time() - os.stat(path).st_mtime > _LEFT_BEHIND_S
        except OSError:  # gone meanwhile
            continue
        if old and not is_populated(path):
            remove(path)


def remove(path: str) -> bool:
    """Remove the group with what was made below it; False while a process lives there."""
    for directory, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            continue
    return not os.path.isdir(path)
