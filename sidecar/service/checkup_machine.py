"""The machine under a project: its Python, its libraries, its clock, its file system, its file events."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib import metadata
from typing import TYPE_CHECKING

from sidecar import __version__
from sidecar.service.finding import fine, note, problem
from sidecar.signals.watch import source_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.config import Settings
    from sidecar.service.finding import DoctorFinding

_LIBRARIES = ("anyio", "mcp", "psutil", "pydantic", "pyyaml", "quickjs-ng", "watchdog")
_MOUNTS = "/proc/self/mountinfo"
_INOTIFY = "/proc/sys/fs/inotify"
_FEW_WATCHES = 8192
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "9p", "lustre")
_WITHOUT_EVENTS = ("fuse", "virtiofs", "vboxsf", "prl_fs")
_FOREVER_AGO = 1_767_225_600  # 2026-01-01: whatever says it is earlier has not been set
_MOST_APART_S = 2.0


def python() -> Iterator[DoctorFinding]:
    """The interpreter and what is installed in it."""
    yield fine("python", f"{sys.version.split()[0]}, {sys.executable}")
    versions: list[str] = []
    for name in _LIBRARIES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            advice = "install sidecar again, with its dependencies"
            yield problem("versions", f"{name} is not installed beside sidecar", advice)
    yield fine("versions", f"sidecar {__version__}; {', '.join(versions)}")


def platform(name: str) -> Iterator[DoctorFinding]:
    """What nobody has seen work: the tests run on Linux."""
    if name == "linux":
        return
    shown = {"darwin": "macOS"}.get(name, name)
    text = (
        f"{shown}: sidecar is tested on Linux alone. By reading only: services of launchd, how processes are found and "
        "ended without cgroups, how leftovers of a crash are told from other processes, file events"
    )
    advice = "after the first abort, compare `survivors` of its receipt with what `ps` shows; tell us what you see"
    yield note("platform", text, advice)


def clock(state_directory: str) -> Iterator[DoctorFinding]:
    """Signals expire by it, and an abort is for the runs that began before it."""
    now = time.time()
    if now < _FOREVER_AGO:
        yield problem("clock", f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}", "set the clock (NTP)")
        return
    try:
        with tempfile.TemporaryFile(dir=state_directory) as file:
            file.write(b"now")
            file.flush()
            apart_s = os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:  # no such directory yet, or not ours to write
        yield fine("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}")
        return
    if abs(apart_s) > _MOST_APART_S:
        where = "ahead of" if apart_s > 0 else "behind"
        text = f"the file system's clock is {abs(apart_s):.0f} s {where} this machine's"
        yield problem("clock", text, "set both clocks (NTP); until then signals may expire too early or too late")
    else:
        yield fine("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}, and the file system agrees")


def file_system(root: str) -> Iterator[DoctorFinding]:
    """What the project lies on: some file systems have no events, or no locks to rely on."""
    found = _mount(os.path.realpath(root))
    if found is None:
        return
    place, kind = found
    if kind.partition(".")[0] in _REMOTE:
        text = f"{kind} at {place}: a network file system"
        advice = "keep the project on a local disk: the journal's locks, and file events, cannot be relied on here"
        yield problem("file system", text, advice)
    elif kind.partition(".")[0] in _WITHOUT_EVENTS:
        yield note("file system", f"{kind} at {place}: it may have no file events; signals are found within a second")
    else:
        yield fine("file system", f"{kind} at {place}")


def file_events(settings: Settings) -> Iterator[DoctorFinding]:
    """How signal files are noticed."""
    troubles: list[str] = []
    source = source_for(settings.watcher, troubles.append)
    yield fine("signals", f"noticed by {type(source).__name__.lower()}, and looked for every second besides")
    source.close()
    advice = "raise fs.inotify.max_user_instances with sysctl, or set `watcher: polling`"
    for trouble in troubles:
        yield problem("signals", trouble, advice)
    watches, instances = _limit("max_user_watches"), _limit("max_user_instances")
    if watches is None:
        return
    text = f"inotify: at most {watches:,} watches and {instances or 0:,} instances per user"
    if watches < _FEW_WATCHES:
        advice = "sysctl fs.inotify.max_user_watches=524288; what cannot be watched is looked for every second"
        yield note("signals", text, advice)
    else:
        yield fine("signals", text)


def _limit(name: str) -> int | None:
    try:
        with open(f"{_INOTIFY}/{name}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _mount(path: str) -> tuple[str, str] | None:
    """The mount that a path is on, and its type; None where the system does not say."""
    best: tuple[str, str] | None = None
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(" ")
                place = fields[4].encode().decode("unicode_escape")
                # Of two at one place, the later one lies on top.
                if f"{path}/".startswith(f"{place.rstrip('/')}/") and (best is None or len(place) >= len(best[0])):
                    best = place, fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return best
    return best
