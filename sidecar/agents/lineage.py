"""Which processes belong to an agent: marks that they inherit, readings of the process table, and how a set is killed.

An agent's processes can leave their parent, their session and their group. Each trace that they cannot all lose leads
back to the agent: a marker in the environment, a tag in a resource limit, ancestry, and sessions made by members.

Standard library only: owner and sentinel find and kill by the same rules.
"""

from __future__ import annotations

import os
import resource
import secrets
import signal
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

# A snapshot lists the pids first and reads each one after: a listed process can fork and be gone before it is read, and
# its child is in no list. Only two snapshots without members, one after the other, prove that there are none.
EMPTY_SNAPSHOTS = 2
_ROUNDS_OF_STOPPING = 50


@dataclass(slots=True)
class Lineage:
    """Everything that can lead from a process back to its agent."""

    marker: str
    tag: int
    root: Identity | None = None
    ancestor: int | None = None  # a sub-reaper of which every descendant counts
    known: set[Identity] = field(default_factory=set)  # who was seen to belong before it lost its traces
    excluded_pids: frozenset[int] = frozenset()  # never members: the owner, the sentinel
    excluded_sessions: frozenset[int] = frozenset()  # theirs

    @classmethod
    def of_new_agent(
        cls, agent_id: str, owner: MarkerOwner, *, excluded_pids: frozenset[int], excluded_sessions: frozenset[int]
    ) -> Lineage:
        """That of an agent which is about to be started, with marks of its own."""
        marker = new_marker(agent_id, owner)
        return cls(marker, new_tag(), excluded_pids=excluded_pids, excluded_sessions=excluded_sessions)

    def members(self, snapshot: Snapshot) -> list[Row]:
        """Who belongs and lives: marked, or known, or born in the tree, or in a session that was made in the tree."""
        found: dict[int, Row] = {}
        todo = self._seeds(snapshot)
        sessions: set[int] = {0, *self.excluded_sessions}
        while todo:
            row = snapshot.rows.get(todo.pop())
            if row is None or row.pid in found or row.pid in self.excluded_pids:
                continue
            found[row.pid] = row
            todo += snapshot.children.get(row.pid, ())
            # A process cannot join a session, only make one: everybody in a member's session is a member.
            if row.session not in sessions:
                sessions.add(row.session)
                todo += snapshot.sessions.get(row.session, ())
        living = [row for row in found.values() if not row.zombie]
        self.known = {row.identity for row in living}
        return living

    def _seeds(self, snapshot: Snapshot) -> list[int]:
        seeds = [identity.pid for identity in self.known if snapshot.has(identity)]
        if self.marker:
            seeds += snapshot.markers.get(self.marker, ())
        if self.tag:
            seeds += snapshot.tags.get(self.tag, ())
        if self.root is not None and snapshot.has(self.root):
            seeds.append(self.root.pid)
        if self.ancestor is not None:
            seeds += snapshot.children.get(self.ancestor, ())
        return seeds


class KillRounds:
    """Kills a set of processes: SIGSTOP until no new one turns up, then SIGKILL. Processes that respawn each other
    have no moment to do it in."""

    def __init__(self, send: Callable[[Identity, signal.Signals], bool]) -> None:
        self._send = send
        self._stopped: set[Identity] = set()
        self._rounds = 0

    def next_round(self, living: Collection[Identity]) -> bool:
        """One round over those that a fresh snapshot found alive; True where they were killed and not only stopped."""
        fresh = set(living) - self._stopped
        self._rounds += 1
        # Processes that fork faster than we read the table are not waited for without end.
        if fresh and self._rounds % _ROUNDS_OF_STOPPING:
            for identity in fresh:
                self._send(identity, signal.SIGSTOP)
            self._stopped |= fresh
            return False
        for identity in living:
            self._send(identity, signal.SIGKILL)
        return True


# --- the process table


_STAT_BYTES = 1024
_ENVIRON_BYTES = 1 << 20
_NAME_BYTES = 64
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Identity(NamedTuple):
    """One process, also after its pid was given to another one."""

    pid: int
    started: float


class Row(NamedTuple):
    """One process as it was read."""

    pid: int
    parent: int
    session: int
    started: float
    zombie: bool
    markers: tuple[str, ...]
    tag: int

    @property
    def identity(self) -> Identity:
        """Which process it is."""
        return Identity(self.pid, self.started)


class Snapshot:
    """One reading of the process table, with the indexes that all agents being ended share."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {row.pid: row for row in rows}

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Pids by parent."""
        return self._indexed("parent")

    @cached_property
    def sessions(self) -> dict[int, list[int]]:
        """Pids by session."""
        return self._indexed("session")

    @cached_property
    def tags(self) -> dict[int, list[int]]:
        """Pids by the tag that they carry."""
        return self._indexed("tag")

    @cached_property
    def markers(self) -> dict[str, list[int]]:
        """Pids by each marker in their environment."""
        found: dict[str, list[int]] = defaultdict(list)
        for row in self.rows.values():
            for marker in row.markers:
                found[marker].append(row.pid)
        return found

    def _indexed(self, field: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for row in self.rows.values():
            found[getattr(row, field)].append(row.pid)
        return found

    def has(self, identity: Identity) -> bool:
        """Whether that very process is in the table, dead but unreaped ones included."""
        row = self.rows.get(identity.pid)
        return row is not None and row.started == identity.started


class ProcessTable:
    """The machine's processes. Read from /proc by `ProcTable`, through psutil by `portable_table.PortableTable`."""

    def __init__(self) -> None:
        # Marks are inherited at fork, so one reading a process is enough; without this a snapshot of 1,000 processes
        # costs five times as much. A process that drops its marks by exec stays known by what it had.
        self._marks: dict[Identity, tuple[tuple[str, ...], int]] = {}

    def snapshot(self) -> Snapshot:
        """A fresh reading of all of it."""
        snapshot = Snapshot([row for row in map(self.row, self._pids()) if row is not None])
        if len(self._marks) > 2 * len(snapshot.rows) + 64:
            self._marks = {known: marks for known, marks in self._marks.items() if snapshot.has(known)}
        return snapshot

    def row(self, pid: int) -> Row | None:
        """A fresh reading of one process."""
        raise NotImplementedError

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        """Signal that very process, or none. False: it is gone, or may not be signalled."""
        raise NotImplementedError

    def program(self, pid: int) -> str:
        """The name of its program, never an argument; empty where that cannot be read."""
        raise NotImplementedError

    def environ(self, pid: int) -> bytes:
        """Its environment as one block of `NAME=value` and zeros; empty where that cannot be read."""
        raise NotImplementedError

    def epoch_s(self, started: float) -> float:
        """A start time of this table in seconds since the epoch."""
        raise NotImplementedError

    def _pids(self) -> Iterable[int]:
        raise NotImplementedError

    def _tag(self, pid: int) -> int:
        raise NotImplementedError

    def _marks_of(self, identity: Identity) -> tuple[tuple[str, ...], int]:
        marks = self._marks.get(identity)
        if marks is None:
            environ = self.environ(identity.pid)
            marks = markers_in(environ), self._tag(identity.pid)
            if environ:  # in the midst of an exec there is none to be seen: it is read again then
                self._marks[identity] = marks
        return marks


class ProcTable(ProcessTable):
    """The table of a Linux machine."""

    def row(self, pid: int) -> Row | None:
        stat = _read(f"/proc/{pid}/stat", _STAT_BYTES)
        # The command's name may hold spaces and brackets: fields are counted from the last bracket.
        fields = stat.rpartition(b")")[2].split()
        if len(fields) < 20:
            return None
        identity = Identity(pid, float(fields[19]))
        # Where only the first thread has ended, the process shows as a zombie and works on: its threads are counted.
        zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
        markers, tag = ((), 0) if zombie else self._marks_of(identity)
        return Row(pid, int(fields[1]), int(fields[3]), identity.started, zombie, markers, tag)

    def send(self, identity: Identity, number: signal.Signals) -> bool:
        try:
            # The descriptor first, the check second: what the descriptor names cannot change any more, so if the
            # start time is right now, the signal cannot reach another process that got the pid meanwhile.
            descriptor = os.pidfd_open(identity.pid)
        except OSError:
            return False
        try:
            row = self.row(identity.pid)
            if row is None or row.zombie or row.started != identity.started:
                return False
            signal.pidfd_send_signal(descriptor, number)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

    def program(self, pid: int) -> str:
        return program_name(_read(f"/proc/{pid}/comm", _NAME_BYTES).decode("utf-8", "replace"))

    def environ(self, pid: int) -> bytes:
        return _read(f"/proc/{pid}/environ", _ENVIRON_BYTES)

    def epoch_s(self, started: float) -> float:
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted_s + started / _TICKS_PER_S

    def _pids(self) -> Iterable[int]:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]

    def _tag(self, pid: int) -> int:
        try:
            return max(resource.prlimit(pid, TAG_LIMIT)[0], 0)
        except (OSError, ValueError):
            return 0


def program_name(title: str) -> str:
    """A program's name out of its title: some programs put their arguments there (`npm exec …`)."""
    return title.split(maxsplit=1)[0] if title.strip() else ""


def _read(path: str, size: int) -> bytes:
    # Only these mean that there is nothing for us to see. Anything else, such as no descriptor left to read with, must
    # not pass for an empty table.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
    try:
        return os.read(file, size)
    except (ProcessLookupError, PermissionError):
        return b""
    finally:
        os.close(file)


# --- the marks: a marker in the environment, and a tag in a resource limit


MARKER_VARIABLE = "SIDECAR_MARKER"
_PREFIX = MARKER_VARIABLE.encode() + b"="
# RLIMIT_LOCKS. Linux has not enforced it since 2.4.25, yet every fork inherits it and no exec resets it, so its soft
# value marks a process even where the environment was emptied (codex gives MCP servers three variables).
TAG_LIMIT = 10
_TAG_BITS = 62
_UUID_BYTES = 37  # as text, with the zero at its end


class MarkerOwner(NamedTuple):
    """The process whose agent it is, on one boot, in one pid namespace."""

    pid: int
    started: float
    pid_namespace: str


def new_tag() -> int:
    """A number that no other agent on this machine has, within a chance of one in 2**61."""
    return secrets.randbits(_TAG_BITS) | 1 << _TAG_BITS - 1


def new_marker(agent_id: str, owner: MarkerOwner) -> str:
    """The word that names an agent and its owner in the environment."""
    return f"{agent_id}/{owner.pid}/{owner.started}/{owner.pid_namespace}"


def owner_in(marker: str) -> MarkerOwner | None:
    """The owner that a marker names; None for a text that is no marker."""
    parts = marker.split("/")
    if len(parts) != 4:
        return None
    try:
        return MarkerOwner(int(parts[1]), float(parts[2]), parts[3])
    except ValueError:
        return None


def with_marker(environment: Mapping[str, str], marker: str) -> str:
    """The variable's value with one more marker: an agent inside an agent carries both."""
    return f"{environment.get(MARKER_VARIABLE, '')} {marker}".strip()


def markers_in(environ: bytes) -> tuple[str, ...]:
    """The markers in an environment block as the kernel shows it."""
    start = 0 if environ.startswith(_PREFIX) else environ.find(b"\0" + _PREFIX) + 1
    if start == 0 and not environ.startswith(_PREFIX):
        return ()
    value = environ[start + len(_PREFIX) :].partition(b"\0")[0]
    return tuple(value.decode("utf-8", "replace").split())


def variable_in(environ: bytes, name: str) -> str | None:
    """One variable in an environment block as the kernel shows it."""
    prefix = os.fsencode(name) + b"="
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def pid_namespace() -> str:
    """The boot and the pid namespace: elsewhere a pid in a marker means nothing."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = "0"
    return f"{boot_id()}:{namespace}"


def boot_id() -> str:
    """Which boot of which machine this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import ctypes  # noqa: PLC0415 - never imported where /proc exists

        import psutil  # noqa: PLC0415

        # The time of the boot is a last resort: it moves whenever the clock is set.
        return boot_session(ctypes.CDLL(None)) or str(int(psutil.boot_time()))


def boot_session(library: Any) -> str | None:
    """What macOS calls this boot, from its C library; None where that does not know."""
    import ctypes  # noqa: PLC0415

    sysctl = getattr(library, "sysctlbyname", None)
    if sysctl is None:
        return None
    value = ctypes.create_string_buffer(_UUID_BYTES)
    size = ctypes.c_size_t(_UUID_BYTES)
    if sysctl(b"kern.bootsessionuuid", value, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return value.value.decode("ascii", "replace") or None
