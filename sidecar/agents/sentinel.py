"""The sentinel: a process of its own that starts an owner's agents, adopts their orphans, and outlives the owner by as
long as it takes to kill them all.

Standard library only (psutil where there is no /proc): it starts fast and stays small, so that forking is cheap.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sidecar.agents import cgroup
from sidecar.agents.lineage import EMPTY_SNAPSHOTS, TAG_LIMIT, KillRounds, Lineage, ProcTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.agents.lineage import ProcessTable

_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_S = 30.0
_BETWEEN_LOOKS_S = 0.005
_LOOK_FOR_OWNER_MS = 500
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Child:
    """One agent that the sentinel started."""

    def __init__(self, request: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.group: str | None = request["group"]
        self.lineage = Lineage(request["marker"], request["tag"])
        self.exited = False
        self.released = False


class Sentinel:
    """Starts on request, reports exits, and sweeps when the owner is gone."""

    def __init__(self, end: socket.socket, *, adopts: bool, base: str | None, table: ProcessTable) -> None:
        self._end = end
        self._inbox = Inbox(end)
        self._table = table
        self._adopts = adopts
        self._base = base
        self._children: dict[int, Child] = {}

    def run(self) -> None:
        """Serve until the owner's end of the socket closes or the owner is gone, then leave nothing behind."""
        waker, wakes = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        poll.register(waker, select.POLLIN)
        # A forked copy of the owner would hold the socket open beyond its death; its pidfd is not fooled. Where there
        # are none (macOS), who dies is no longer our parent, and we look.
        parent = os.getppid()
        owner = os.pidfd_open(parent) if hasattr(os, "pidfd_open") else -1
        if owner >= 0:
            poll.register(owner, select.POLLIN)
        self._send({"type": "ready", "pid": os.getpid(), "session": os.getsid(0)})
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(None if owner >= 0 else _LOOK_FOR_OWNER_MS)}
            if waker in ready:
                os.read(waker, 4096)
                self._report_exits()
            if owner in ready or (owner < 0 and os.getppid() != parent):
                break
            if self._end.fileno() in ready:
                requests = self._inbox.receive()
                if requests is None:
                    break
                for request in requests:
                    self._serve(request)
        self._sweep()

    def _serve(self, request: dict[str, Any]) -> None:
        if request["type"] == "release":
            child = self._children.get(request["id"])
            if child is not None:
                child.released = True
                self._reap_released()
            return
        descriptors = self._inbox.take(3)
        try:
            process = self._start(request, descriptors)
        except OSError as error:
            self._send({"type": "failed", "id": request["id"], "errno": error.errno, "what": error.filename})
            return
        except Exception as error:  # one that cannot be started must not cost all the others their sentinel
            why = f"{type(error).__name__}: {error}"
            self._send({"type": "failed", "id": request["id"], "errno": None, "what": why})
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._children[request["id"]] = Child(request, process)
        row = self._table.row(process.pid)
        started = row.started if row else 0.0
        self._send({"type": "started", "id": request["id"], "pid": process.pid, "started": started})

    def _start(self, request: dict[str, Any], descriptors: list[int]) -> subprocess.Popen[bytes]:
        # The child is born with what the sentinel is at that moment: its group and its tag. That needs no code
        # between fork and exec, so the cheap vfork is used, and no instant passes in which a child is unmarked.
        with _tagged(request["tag"]), self._inside(request["group"]):
            return subprocess.Popen(  # noqa: S603
                request["argv"],
                cwd=request["cwd"],
                env=request["env"],
                stdin=descriptors[0],
                stdout=descriptors[1],
                stderr=descriptors[2],
                start_new_session=True,
            )

    @contextmanager
    def _inside(self, group: str | None) -> Iterator[None]:
        if group is None or self._base is None:
            yield
            return
        cgroup.enter(group)
        try:
            yield
        finally:
            cgroup.enter(self._base)

    def _reap_released(self) -> None:
        """Without waiting: a process that cannot be killed (a dead disk, another user's) must not delay the others."""
        done = [n for n, child in self._children.items() if child.released and child.process.poll() is not None]
        for number in done:
            del self._children[number]

    def _report_exits(self) -> None:
        exits = []
        for number, child in self._children.items():
            if not child.exited:
                status = _exit_status(child.process)
                if status is not None:
                    child.exited = True
                    exits.append((number, status))
        self._reap_released()
        # Read after the exits: the orphans of a dead agent were adopted before the agent could be waited for.
        orphans = self._reap_orphans()
        for number, status in exits:
            self._send({"type": "exited", "id": number, "status": status, "orphans": orphans})

    def _reap_orphans(self) -> bool:
        """Reap the dead among the adopted; whether living ones are left (yes, where that is not known)."""
        if not self._adopts:
            return True
        try:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                children = {int(pid) for pid in file.read().split()}
        except OSError:
            return True
        children -= {child.process.pid for child in self._children.values()}
        left = False
        for pid in children:
            try:
                left = os.waitpid(pid, os.WNOHANG)[0] == 0 or left
            except ChildProcessError:
                continue
        return left

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._end.sendall(pack(message))
        except OSError:  # the owner is gone; the loop finds out and sweeps
            return

    def _sweep(self) -> None:
        """Kill every tree, and look again until nothing is left."""
        self._end.close()
        groups = [child.group for child in self._children.values() if child.group]
        lineages = [child.lineage for child in self._children.values()]
        lineages.append(Lineage("", 0, ancestor=os.getpid()))
        for lineage in lineages:
            lineage.excluded_pids = frozenset({os.getpid()})
            lineage.excluded_sessions = frozenset({os.getsid(0)})
        killing = KillRounds(self._table.send)
        deadline = time.monotonic() + _SWEEP_S
        empty = 0
        while empty < EMPTY_SNAPSHOTS and time.monotonic() < deadline:
            for group in groups:
                cgroup.kill(group)
            table = self._table.snapshot()
            living = {row.identity for lineage in lineages for row in lineage.members(table)}
            empty = 0 if living or any(map(cgroup.is_populated, groups)) else empty + 1
            if not empty and killing.next_round(living):
                self._report_exits()
                time.sleep(_BETWEEN_LOOKS_S)
        for group in groups:
            cgroup.remove(group)


@contextmanager
def _tagged(tag: int) -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(TAG_LIMIT)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < tag:  # this limit is used after all
        yield
        return
    resource.setrlimit(TAG_LIMIT, (tag, hard))
    try:
        yield
    finally:
        resource.setrlimit(TAG_LIMIT, (soft, hard))


def _exit_status(process: subprocess.Popen[bytes]) -> int | None:
    """How the process ended, or None while it lives.

    The zombie is left in place until the owner is done with the tree: as long as it is there, its pid, which is
    also its session's id, cannot be given to another process.
    """
    if not hasattr(os, "waitid"):
        return process.poll()
    try:
        result = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return process.poll()
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def become_subreaper() -> None:
    """Orphans of our descendants become our children instead of init's."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def main(descriptor: int, containment: str, base: str, descriptors: int) -> None:
    """Entry point: `descriptor` is our end of the owner's socket pair, `descriptors` how many agents may have open."""
    # One that takes a killed one's place is started when the owner has already raised its own limit.
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    # Handlers, not SIG_IGN: what is ignored stays ignored in the agents after exec, what is handled does not.
    for number in (*_HANDLED, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    adopts = containment != "sweep"
    if adopts:
        become_subreaper()
    os.chdir("/")
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    Sentinel(end, adopts=adopts, base=base or None, table=_table(portable=not adopts)).run()


def _table(*, portable: bool) -> ProcessTable:
    if not portable:
        return ProcTable()
    from sidecar.agents.portable_table import PortableTable  # noqa: PLC0415 - psutil only where it is needed

    return PortableTable()


# --- how owner and sentinel talk: length-prefixed JSON over a socket pair, descriptors beside it


_HEAD = struct.Struct("!I")
_READ_BYTES = 1 << 16
_MOST_DESCRIPTORS = 64


def pack(message: dict[str, Any]) -> bytes:
    """A message as bytes. JSON escapes lone surrogates, so arguments that are not UTF-8 arrive as they were."""
    body = json.dumps(message).encode("ascii")
    return _HEAD.pack(len(body)) + body


class Inbox:
    """Bytes in, messages out. Descriptors queue up in the order in which they were sent: a message takes its own."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._bytes = bytearray()
        self.descriptors: list[int] = []

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that are complete now; None when the other end is gone."""
        try:
            data, extra, _, _ = self._end.recvmsg(_READ_BYTES, socket.CMSG_SPACE(4 * _MOST_DESCRIPTORS))
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        for level, kind, payload in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self.descriptors += received
        if not data:
            return None
        self._bytes += data
        return list(self._complete())

    def take(self, count: int) -> list[int]:
        """The descriptors that belong to the message at hand."""
        taken, self.descriptors = self.descriptors[:count], self.descriptors[count:]
        return taken

    def _complete(self) -> list[dict[str, Any]]:
        messages = []
        at = 0
        while len(self._bytes) - at >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._bytes, at)
            if len(self._bytes) - at - _HEAD.size < size:
                break
            at += _HEAD.size
            messages.append(json.loads(self._bytes[at : at + size]))
            at += size
        del self._bytes[:at]
        return messages
