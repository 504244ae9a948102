"""What stands below `.swissarmyhammer/` and in workspaces though nobody needs it any more: signals, sockets, halves."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.model import ulid
from sidecar.service.finding import fine, note, problem
from sidecar.signals import files, run_lock, targets
from sidecar.signals.receipts import still_to_take
from sidecar.sockets import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.service.finding import DoctorFinding
    from sidecar.signals.files import Signal

# What a writer leaves who dies in the middle of it.
_HALF = re.compile(r"\.(stop|abort)(\.taken|(\.receipt\.json)?\.[0-9a-f]{16}\.tmp)")
_UNDER_WAY_S = 60.0
_SHOWN = 5


def leftovers(root: str, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Signals that no run is there to obey, and what other writers left."""
    found = list(_stale_signals(root, environment))
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        yield problem("leftovers", f"and {len(found) - _SHOWN} more signals that no open run obeys", "see above")
    halves = [path for directory in _directories(root, environment) for path in _halves(directory)]
    if halves:
        yield note("leftovers", f"half-written by a process that died: {_named(halves)}", f"rm {_named(halves)}")
    if not found and not halves:
        yield fine("leftovers", "no stale signals")


def sockets(root: str) -> Iterator[DoctorFinding]:
    """The daemon, if there is one, and sockets that nobody listens at any more."""
    pid = _daemon(root)
    yield fine("daemon", f"process {pid}" if pid else "none; detached runs get a process of their own")
    dead = [path for path in (layout.daemon_socket(root), layout.handover_socket(root)) if _is_dead(path)]
    if pid and not os.path.exists(layout.daemon_socket(root)):
        yield problem("daemon", f"process {pid} has no socket", "start it again, if it does not appear in a second")
    for run_id in _entries(layout.runs_directory(root)):
        path = layout.run_socket(root, run_id)
        if os.path.lexists(path) and not run_lock.is_live(root, run_id):
            dead.append(path)
    if dead:
        yield note("sockets", f"nobody listens at {_named(dead)}", f"rm {_named(dead)}")


def _stale_signals(root: str, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    for directory in _directories(root, environment):
        for kind in files.FILE_NAMES:
            signal = files.read(os.path.realpath(directory), kind)
            if signal is not None and not still_to_take(root, signal):
                yield _stale(signal)


def _stale(signal: Signal) -> DoctorFinding:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(signal.arrived_at))
    effect = "no open run obeys it"
    if signal.kind == "stop":
        effect = "the next run that it governs stops before its first step"
    if signal.trailers.run_id is not None:
        effect = f"it is for run {signal.trailers.run_id}, which is not open"
    text = f"{signal.path}, since {since} ({' '.join(signal.reason.split())[:80]}): {effect}"
    return problem("leftovers", text, f"rm '{signal.path}', unless that is meant")


def _directories(root: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Every signal directory of the project."""
    yield layout.state_directory(root)
    workspaces = targets.workspaces_directory(root, environment)
    yield from (os.path.join(workspaces, name) for name in _entries(workspaces) if layout.is_name(name))
    runs = layout.runs_directory(root)
    yield from (os.path.join(runs, name) for name in _entries(runs) if ulid.is_valid(name))


def _halves(directory: str) -> Iterator[str]:
    for name in _entries(directory):
        path = os.path.join(directory, name)
        try:
            if _HALF.fullmatch(name) and time.time() - os.lstat(path).st_mtime > _UNDER_WAY_S:
                yield path
        except OSError:  # gone meanwhile
            continue


def _daemon(root: str) -> int | None:
    """Who is the project's daemon: whoever holds its lock."""
    import fcntl  # noqa: PLC0415

    try:
        file = os.open(layout.daemon_lock(root), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        said = os.pread(file, 32, 0).split(b"\n")[0]
        return int(said) if said.isdigit() else None
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _is_dead(path: str) -> bool:
    try:
        connect(path).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it is not there, or not ours
        return False
    return False


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _named(paths: list[str]) -> str:
    shown = " ".join(f"'{path}'" for path in paths[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")
