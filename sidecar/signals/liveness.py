"""Who is running: a run is live while some process holds the lock in its directory.

The kernel drops the lock when its holder dies, however it dies, so there are no stale locks. The file also says
which workspace the run is bound to, so that `sidecar stop` can tell who will hear it without a database. So that it
need not try the lock of every run that ever was, those that may be live have an entry in a directory of their own.
"""

from __future__ import annotations

import fcntl
import os
import time

from sidecar import layout
from sidecar.errors import SidecarError, StoreError
from sidecar.signals import files

LOCK_NAME = "lock"
_GLANCE_S = 0.1


class RunLock:
    """The right to execute one run. Exactly one process has it at a time."""

    def __init__(self, root: str, run_id: str, workspace: str | None = None) -> None:
        self._directory = layout.run_directory(root, run_id)
        self._entry = os.path.join(layout.live_directory(root), run_id)
        self._run_id = run_id
        self._workspace = workspace
        self._governing = [place for place in (layout.state_directory(root), workspace, self._directory) if place]
        self._file = -1
        # What stood in the directories that govern the run before this start. Which came first is known by looking, not
        # from comparing times: a clock that is set back in between would make a leftover of an abort.
        self.leftovers: frozenset[str] = frozenset()

    def acquire(self) -> None:
        """Take it, or say who has it. StoreError where the run's directory takes no files: then its journal, which is
        beside it, could not be kept either."""
        try:
            self._acquire()
        except OSError as error:
            where = f"{error.filename or self._directory}: {error.strerror}"
            message = f"run {self._run_id} cannot be executed, its lock cannot be written: {where}"
            raise StoreError(message, kind="forbidden") from None

    def _acquire(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        os.makedirs(os.path.dirname(self._entry), exist_ok=True)
        # The entry before the lock: a live run without one would not be seen. One without a live run does no harm.
        # No links: somebody who may write here could have a file of ours, anywhere, taken for it and cut off.
        made = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(self._entry, os.O_RDWR | made, 0o644))
        # Close-on-exec, as Python opens everything: an agent that inherited it would keep a dead run alive.
        file = os.open(os.path.join(self._directory, LOCK_NAME), os.O_RDWR | made, 0o644)
        # Before the lock: what comes once the run can be seen to be live is for it.
        leftovers = frozenset(one for directory in self._governing for one in files.standing(directory))
        try:
            self._lock(file)
            # Cut after writing, not before: whoever looks meanwhile must not find an owner without a workspace.
            os.ftruncate(file, os.pwrite(file, os.fsencode(f"{os.getpid()}\n{self._workspace or ''}\n"), 0))
            self.leftovers = leftovers
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _lock(self, file: int) -> None:
        deadline = time.monotonic() + _GLANCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:  # an owner, or somebody who only looks whether there is one: that is over at once
                if time.monotonic() > deadline:
                    holder = os.pread(file, 32, 0).split(b"\n")[0].decode(errors="replace")
                    raise SidecarError(f"run {self._run_id} is already being executed, by process {holder}") from None
                time.sleep(0.002)

    def release(self) -> None:
        """Give it up; a second time does nothing."""
        if self._file >= 0:
            try:
                os.unlink(self._entry)
            except OSError:  # somebody tidied up, or the disk went away: the lock is what counts
                pass
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def live_runs(root: str, *, workspace: str | None = None) -> list[str]:
    """The ids of the runs that are being executed now, newest first; of one workspace, where one is given."""
    try:
        run_ids = os.listdir(layout.live_directory(root))
    except OSError:
        return []
    return [run_id for run_id in sorted(run_ids, reverse=True) if is_live(root, run_id, workspace=workspace)]


def is_live(root: str, run_id: str, *, workspace: str | None = None) -> bool:
    """Whether a process executes this run now (and, where a workspace is given, is bound to it)."""
    try:
        # Not blocking: an agent may have put a FIFO where the lock should be.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(os.path.join(layout.run_directory(root, run_id), LOCK_NAME), flags)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        bound_to = os.fsdecode(os.read(file, 8192)).partition("\n")[2].removesuffix("\n")
        return workspace is None or bound_to == workspace
    except OSError:  # no locks on this file system: nobody can be shown to run
        return False
    finally:
        os.close(file)
    return False
