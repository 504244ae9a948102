"""Decides who may execute a run: the one process that holds its lock. Files say so, and which runs are open: `sidecar
stop` needs no database.

A run is open from its beginning until it has ended, and `open` in its directory says so. It is live while some process
holds the lock beside it: the kernel drops the lock when its holder dies, however it dies, so there are no stale locks.
So that not every run that ever was has to be looked at, open ones have an entry in a directory of their own.
"""

from __future__ import annotations

import fcntl
import os
import time

from sidecar import layout
from sidecar.errors import SidecarError, SignalError, StoreError
from sidecar.signals import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LOCK_NAME = "lock"
OPEN_NAME = "open"
_GLANCE_S = 0.1
_MAX_MARK_BYTES = 64 * 1024
# No links: somebody who may write here could have a file of ours, anywhere, taken for it and cut off. Close-on-exec, as
# Python opens everything: an agent that inherited a lock would keep a dead run alive.
_MADE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # not blocking: it may be a FIFO


class RunLock:
    """The right to execute one run. Exactly one process has it at a time."""

    def __init__(self, root: str, run_id: str) -> None:
        self._directory = layout.run_directory(root, run_id)
        self._run_id = run_id
        self._file = -1

    def acquire(self, within_s: float = _GLANCE_S) -> None:
        """Take it, or say who has it. StoreError where the run's directory takes no files: then its journal, which is
        beside it, could not be kept either."""
        try:
            layout.make_directory(self._directory)
            self.acquire_in(self._directory, within_s)
        except OSError as error:
            raise self._unwritable(error) from None

    def acquire_in(self, directory: str, within_s: float = _GLANCE_S) -> None:
        """Take it in a directory that is still to become the run's."""
        file = os.open(os.path.join(directory, LOCK_NAME), _MADE, 0o644)
        try:
            self._lock(file, within_s)
            # Cut after writing, not before: whoever looks meanwhile must not find a lock without an owner.
            os.ftruncate(file, os.pwrite(file, b"%d\n" % os.getpid(), 0))
        except BaseException:
            os.close(file)
            raise
        self._file = file

    def _lock(self, file: int, within_s: float) -> None:
        holder = lock_or_holder(file, within_s)
        if holder is not None:
            raise RunBusy(f"run {self._run_id} is already being executed, by process {holder}")

    def _unwritable(self, error: OSError) -> StoreError:
        where = f"{error.filename or self._directory}: {error.strerror}"
        message = f"run {self._run_id} cannot be executed, its lock cannot be written: {where}"
        return StoreError(message, kind="forbidden")

    def is_in_place(self) -> bool:
        """Whether the lock that this process holds is still the one that others find."""
        return is_at(os.path.join(self._directory, LOCK_NAME), self._file)

    def release(self) -> None:
        """Give it up; a second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> RunLock:
        if self._file < 0:  # else it came with the beginning of the run
            self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LockTurn:
    """The right to be the next that has the run's lock. Without it, a process that makes one call after the other has
    the lock again before those who wait for it have looked.

    It is a lock on the run's `open`. Where that cannot be locked, or is replaced, only the order suffers.
    """

    def __init__(self, root: str, run_id: str) -> None:
        self._path = os.path.join(layout.run_directory(root, run_id), OPEN_NAME)
        self._file = -1
        self._has = False

    def acquire(self) -> bool:
        """Take it, unless it is taken already; False where another process has it."""
        if not self._has:
            try:
                if self._file < 0:
                    self._file = os.open(self._path, _READ)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # the run has ended, or there are no locks on this file system
                pass
            self._has = True
        return True

    def __enter__(self) -> LockTurn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)


class RunBusy(SidecarError):  # noqa: N818 - a state, not a defect
    """Another process holds the run's lock."""


class Mark:
    """What `open` in a run's directory says: who drives it, its workspace, and the signals that stood in its signal
    directories at its beginning (`files.Signal.occurrence`). Which came first is known by looking, not from comparing
    times: a clock that is set back in between would make a leftover of an abort."""

    __slots__ = ("driver", "standing", "workspace")

    def __init__(self, driver: str, workspace: str | None, standing: Iterable[str]) -> None:
        self.driver = driver
        self.workspace = workspace
        self.standing = frozenset(standing)

    def to_bytes(self) -> bytes:
        """One field a line; the workspace last, because a path may have line breaks in it."""
        head = f"Driver: {self.driver}\nStanding: {' '.join(sorted(self.standing))}\nWorkspace: "
        return os.fsencode(head + (self.workspace or "") + "\n")

    @staticmethod
    def parse(content: bytes) -> Mark:
        """Never refuses: a file that cannot be understood still says that the run is open."""
        driver, _, rest = os.fsdecode(content).partition("\n")
        standing, _, workspace = rest.partition("\n")
        workspace = workspace.removeprefix("Workspace: ").removesuffix("\n")
        return Mark(driver.removeprefix("Driver: "), workspace or None, standing.removeprefix("Standing: ").split())


def lock_or_holder(file: int, within_s: float = _GLANCE_S) -> str | None:
    """Lock a file for this process alone, or the pid that its holder wrote into it."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        except BlockingIOError:  # a holder, or somebody who only looks whether there is one: that is over at once
            if time.monotonic() > deadline:
                return _written(file)
            time.sleep(0.002)


def is_at(path: str, file: int) -> bool:
    """Whether an open file is the one that the path leads to: not where it, or a directory above it, was moved,
    removed or replaced. True where that cannot be known."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(file))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # the disk does not answer now, or the directory may not be searched any more
        return True


# --- from a beginning to an end


def begin(root: str, run_id: str, *, workspace: str | None, driver: str) -> RunLock:
    """The beginning of a new run; the result is its lock, held.

    The directory is made under another name, with the record of what stands there already inside, and renamed: every
    signal that is written once the run can be seen is for it.
    """
    lock = RunLock(root, run_id)
    directory = layout.run_directory(root, run_id)
    made = os.path.join(os.path.dirname(directory), f".{run_id}.new")
    governing = [place for place in (layout.state_directory(root), workspace) if place]
    try:
        layout.make_directory(made)
        lock.acquire_in(made)
        # Whatever the umask: other users look whether the run is open, and its lock held.
        os.chmod(made, 0o755)  # noqa: S103
        os.chmod(os.path.join(made, LOCK_NAME), files.READABLE)
        mark = Mark(driver, workspace, _standing(governing))
        files.replace(made, OPEN_NAME, mark.to_bytes())
        _add_entry(root, run_id)
        os.rename(made, directory)
    except OSError as error:
        lock.release()
        forget(root, run_id)
        where = f"{error.filename or made}: {error.strerror}"
        raise StoreError(f"the directory of a new run cannot be written: {where}", kind="forbidden") from None
    return lock


def begin_again(root: str, run_id: str, *, workspace: str | None, driver: str) -> None:
    """A run that had ended begins again: what stands there now is recorded. The caller holds its lock."""
    directory = layout.run_directory(root, run_id)
    governing = [place for place in (layout.state_directory(root), workspace, directory) if place]
    _write_mark(root, run_id, Mark(driver, workspace, _standing(governing)))


def keep_open(root: str, run_id: str, *, workspace: str | None, driver: str) -> Mark:
    """The mark of a run that goes on, with its driver of now. The caller holds its lock.

    Where the mark is gone, because somebody deleted it, nothing is taken for older than the run: better that a signal
    from before ends it than that one is lost.
    """
    found = mark(root, run_id)
    kept = Mark(driver, workspace, found.standing if found else ())
    if found is None or found.driver != driver:
        _write_mark(root, run_id, kept)
    return kept


def end(root: str, run_id: str) -> None:
    """The run has ended. The caller holds its lock."""
    for path in (os.path.join(layout.run_directory(root, run_id), OPEN_NAME), _entry(root, run_id)):
        try:
            os.unlink(path)
        except OSError:  # somebody tidied up, or the disk went away: the journal says that it has ended
            pass


def forget(root: str, run_id: str) -> None:
    """A beginning that came to nothing: the journal never knew of the run."""
    import shutil  # noqa: PLC0415 - rarely needed, and slow to import

    directory = layout.run_directory(root, run_id)
    end(root, run_id)
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(os.path.join(os.path.dirname(directory), f".{run_id}.new"), ignore_errors=True)


# --- what others see


def mark(root: str, run_id: str) -> Mark | None:
    """What the run's `open` says; None where the run has ended, or never was."""
    try:
        file = os.open(os.path.join(layout.run_directory(root, run_id), OPEN_NAME), _READ)
    except OSError:
        return None
    try:
        return Mark.parse(os.read(file, _MAX_MARK_BYTES))
    except OSError:
        return Mark("", None, ())
    finally:
        os.close(file)


def open_runs(root: str, *, workspace: str | None = None) -> list[str]:
    """The ids of the runs that have not ended, newest first; of one workspace, where one is given.

    SignalError where this user may not read which they are.
    """
    directory = layout.open_directory(root)
    try:
        run_ids = sorted(os.listdir(directory), reverse=True)
    except PermissionError as error:
        raise SignalError(f"cannot read which runs are open: {directory}: {error.strerror}") from None
    except OSError:
        return []
    found = ((run_id, mark(root, run_id)) for run_id in run_ids)
    return [run_id for run_id, known in found if known and (workspace is None or known.workspace == workspace)]


def live_runs(root: str, *, workspace: str | None = None) -> list[str]:
    """Those of the open runs that are being executed now."""
    return [run_id for run_id in open_runs(root, workspace=workspace) if is_live(root, run_id)]


def is_live(root: str, run_id: str) -> bool:
    """Whether a process executes this run now."""
    return holder(root, run_id) is not None


def holder(root: str, run_id: str) -> str | None:
    """The process id of whoever executes this run now; None: nobody does."""
    try:
        file = os.open(os.path.join(layout.run_directory(root, run_id), LOCK_NAME), _READ)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _written(file)
    except OSError:  # no locks on this file system: no process can be shown to run it
        return None
    finally:
        os.close(file)
    return None


def _written(file: int) -> str:
    """The process id in a lock file."""
    return os.pread(file, 32, 0).split(b"\n")[0].decode(errors="replace")


def _standing(directories: Iterable[str]) -> list[str]:
    found = []
    for directory in directories:
        files.recover(directory)  # before the look: what is put back later would be taken for new
        found += files.occurrences(directory)
    return found


def _write_mark(root: str, run_id: str, mark: Mark) -> None:
    try:
        layout.make_directory(layout.run_directory(root, run_id))
        _add_entry(root, run_id)  # first: an open run without an entry would not be seen, an entry alone does no harm
        files.replace(layout.run_directory(root, run_id), OPEN_NAME, mark.to_bytes())
    except OSError as error:
        where = f"{error.filename or layout.run_directory(root, run_id)}: {error.strerror}"
        message = f"run {run_id} cannot begin, its directory cannot be written: {where}"
        raise StoreError(message, kind="forbidden") from None


def _add_entry(root: str, run_id: str) -> None:
    layout.make_directory(layout.open_directory(root))
    os.close(os.open(_entry(root, run_id), _MADE, 0o644))


def _entry(root: str, run_id: str) -> str:
    return os.path.join(layout.open_directory(root), run_id)
