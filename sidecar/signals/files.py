"""Signal files: how one is written, looked at, read and cleared.

The existence of the name is the signal; everything here goes by `lstat`, so a dangling link or a FIFO signals
too, and only a regular file is ever opened. Standard library only: `sidecar stop` is little more than this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from sidecar.errors import SignalError
from sidecar.signals import trailers as trailer_format
from sidecar.signals.trailers import MAX_BYTES, Trailers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Literal

    Kind = Literal["stop", "abort"]

FILE_NAMES: dict[Kind, str] = {"stop": ".stop", "abort": ".abort"}
NO_REASON: dict[Kind, str] = {"stop": "no reason given", "abort": "Unknown abort reason"}
_TAKEN = ".taken"
_LOCK_PATIENCE_S = 1.0
_RENAME_NOREPLACE = 1  # linux/fs.h
# The system call behind it is missing from older systems, and older container sandboxes forbid it: there `access`
# says of everything that it does not exist, and no signal would ever be seen.
_ACCESS_WORKS = os.access in os.supports_follow_symlinks and os.access("/", os.F_OK, follow_symlinks=False)


class Signal:
    """A signal as it was found: which file, why, by whom, and enough to recognise that very file again."""

    __slots__ = ("arrived_at", "fingerprint", "kind", "occurrence", "path", "reason", "trailers")

    def __init__(self, kind: Kind, path: str, found: os.stat_result, content: bytes) -> None:
        reason, self.trailers = trailer_format.parse(content)
        self.kind = kind
        self.path = path
        self.reason = reason or NO_REASON[kind]
        # The inode's change time, not its modification time: `scp -p` and `touch -d` bring old ones along.
        self.arrived_at = found.st_ctime
        self.occurrence = _occurrence(found)
        self.fingerprint = (*_identity(found), content)

    @property
    def signal_id(self) -> str:
        """The writer's id; for a bare file one that every reader of this very file agrees on."""
        device, inode, modified_ns, size, _ = self.fingerprint
        return self.trailers.signal_id or f"file-{device:x}-{inode:x}-{modified_ns:x}-{size:x}"

    def __eq__(self, other: object) -> bool:
        """The same file with the same content in the same place."""
        return isinstance(other, Signal) and (self.path, self.fingerprint) == (other.path, other.fingerprint)

    def __hash__(self) -> int:
        return hash((self.path, self.fingerprint))

    def __repr__(self) -> str:
        return f"Signal({self.kind!r}, {self.path!r}, reason={self.reason!r}, {self.trailers!r})"


def path_of(directory: str, kind: Kind) -> str:
    """Where a signal of this kind stands for this directory."""
    return f"{directory}/{FILE_NAMES[kind]}"


def present(path: str) -> bool:
    """Whether the signal is there: less than a microsecond, and true for a dangling link too."""
    if _ACCESS_WORKS:
        return os.access(path, os.F_OK, follow_symlinks=False)
    try:
        os.lstat(path)
    except OSError:
        return False
    return True


def read(directory: str, kind: Kind) -> Signal | None:
    """The signal in a directory, or None. Never blocks and never follows a link, whatever stands there."""
    path = path_of(directory, kind)
    try:
        found = os.lstat(path)
    except OSError:
        return None
    content = b""
    if stat.S_ISREG(found.st_mode):
        try:
            content, found = _read_regular(path)
        except OSError:  # gone meanwhile, or not ours to read: it signals all the same
            pass
    return Signal(kind, path, found, content)


def standing(directory: str) -> list[str]:
    """What stands in a directory now: each signal's `occurrence`."""
    found = []
    for name in FILE_NAMES.values():
        try:
            found.append(_occurrence(os.lstat(f"{directory}/{name}")))
        except OSError:
            continue
    return found


def settled(signal: Signal) -> Signal:
    """The signal with the content that its writer had not put in yet when it was read, if it is still that file.

    `echo why > .stop` makes an empty file and then writes: whoever looked in between has read nothing, and would take
    the rest for a newer signal and leave it to the next run.
    """
    if signal.fingerprint[-1]:
        return signal
    found = read(os.path.dirname(signal.path), signal.kind)
    return found if found is not None and found.fingerprint[:2] == signal.fingerprint[:2] else signal


def write(directory: str, kind: Kind, reason: str, trailers: Trailers, *, inside: str | None = None) -> str:
    """Put a signal there, whole or not at all, durable when this returns. The result is its path.

    `inside`: a directory, by its real path, that has to hold this one when it is written to, not only when somebody
    looked: who may rename things on the way could lead the writer elsewhere.
    """
    path = path_of(directory, kind)
    try:
        replace(directory, FILE_NAMES[kind], trailer_format.compose(reason, trailers), inside=inside)
    except IsADirectoryError:
        raise SignalError(f"cannot write {path}: it is a directory, which signals {kind} already; remove it") from None
    except OSError as error:
        why = error.strerror if error.errno == errno.EXDEV else os.strerror(error.errno or errno.EIO)
        raise SignalError(f"cannot write {path}: {why}") from None
    return path


def clear(signal: Signal) -> bool:
    """Remove this very signal. False: something newer stands in its place, and was left there.

    The file is moved aside before it is compared, because between a look and an `unlink` somebody may write a
    new signal, which would be lost. If this process dies meanwhile, `recover` puts back what it finds aside.
    """
    directory, name = os.path.split(signal.path)
    try:
        with Locked(directory) as handle:
            _put_back(handle, name)
            found = os.lstat(name, dir_fd=handle)
            if stat.S_ISDIR(found.st_mode):
                if _identity(found) != signal.fingerprint[:4]:
                    return False
                os.rmdir(name, dir_fd=handle)
                return True
            os.rename(name, name + _TAKEN, src_dir_fd=handle, dst_dir_fd=handle)
            if _is_same(signal, name + _TAKEN, handle):
                os.unlink(name + _TAKEN, dir_fd=handle)
                return True
            _put_back(handle, name)
            return False
    except FileNotFoundError:
        return True
    except OSError as error:
        raise SignalError(f"cannot remove {signal.path}: {os.strerror(error.errno or errno.EIO)}") from None


def cancel(directory: str, kind: Kind) -> Signal | None:
    """Take back the signal of this kind, also one that a process which died in the middle of `clear` left aside: that
    one is not put back before, because a live run would obey it. The result is what was taken back."""
    aside = _remove_aside(directory, kind)
    signal = read(directory, kind)
    if signal is not None and not clear(signal):
        raise SignalError(f"a newer signal was written to {signal.path} meanwhile; it still stands")
    return signal or aside


def recover(directory: str) -> None:
    """Put back what a process that died in the middle of `clear` left aside: better repeated than lost."""
    for name in FILE_NAMES.values():
        if present(f"{directory}/{name}{_TAKEN}"):
            try:
                with Locked(directory) as handle:
                    _put_back(handle, name)
            except OSError:  # a directory that is going away: there is nothing to put back then
                pass


def replace(directory: str, name: str, data: bytes, *, inside: str | None = None) -> None:
    """Give a file this content atomically: temporary file beside it, synced, renamed, directory synced."""
    handle = _open_directory(directory)
    try:
        if inside is not None:
            _refuse_outside(handle, inside)
        temporary = f"{name}.{os.urandom(8).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, 0o644, dir_fd=handle)
        try:
            try:
                _write_all(file, data)
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
        except BaseException:
            _unlink_quietly(temporary, handle)
            raise
        try:
            os.fsync(handle)
        except OSError:
            # The file stands by now. A file system that cannot sync directories must not turn that into an
            # error: the caller would believe that nothing was written.
            pass
    finally:
        os.close(handle)


class Locked:
    """A descriptor of the directory, with an advisory lock among sidecars while it is held.

    Bounded: somebody else who holds a lock on the directory can delay a sidecar by a second, not wedge it.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> int:
        self._handle = _open_directory(self._directory)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:  # NFS and others cannot lock a directory
                break
        return self._handle

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._handle)


def _open_directory(directory: str) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # A drop box: files can be put into it by people who may not list it.
        return os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)


def _refuse_outside(handle: int, inside: str) -> None:
    """Both as the kernel names them: no later swap of a name changes what is asked here, and a name that was typed in
    another case is the same name."""
    where = _place(handle)
    if where is None:  # the look before has to do
        return
    top = _open_directory(inside)
    try:
        around = _place(top) or inside
    finally:
        os.close(top)
    if not f"{where}/".startswith(f"{around.rstrip('/')}/"):
        raise OSError(errno.EXDEV, f"it leads outside the project, to {where}")


def _place(handle: int) -> str | None:
    """Where a directory that is open stands; None where the system does not tell."""
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except OSError:  # no /proc: macOS knows another way
        command = getattr(fcntl, "F_GETPATH", None)
        return None if command is None else os.fsdecode(fcntl.fcntl(handle, command, bytes(1024)).rstrip(b"\0"))


def _read_regular(path: str, handle: int | None = None) -> tuple[bytes, os.stat_result]:
    """At most one byte more than a signal may have, and what was opened: a swap since the look is harmless."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, dir_fd=handle)
    try:
        found = os.fstat(file)
        return (os.read(file, MAX_BYTES + 1) if stat.S_ISREG(found.st_mode) else b""), found
    finally:
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _unlink_quietly(name: str, handle: int) -> None:
    try:
        os.unlink(name, dir_fd=handle)
    except OSError:
        pass


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    # Without the change time: moving the file aside changes it.
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _occurrence(found: os.stat_result) -> str:
    """This very file since its last change: one that comes back, or is touched, is another. As text, to be kept."""
    return "-".join(format(number, "x") for number in (*_identity(found), found.st_ctime_ns))


def _is_same(signal: Signal, name: str, handle: int) -> bool:
    found = os.lstat(name, dir_fd=handle)
    if _identity(found) != signal.fingerprint[:4]:
        return False
    if not stat.S_ISREG(found.st_mode):
        return True
    try:  # modification times are coarse on older kernels: the content decides
        return _read_regular(name, handle)[0] == signal.fingerprint[4]
    except OSError:
        return True


def _remove_aside(directory: str, kind: Kind) -> Signal | None:
    path = path_of(directory, kind) + _TAKEN
    if not present(path):
        return None
    try:
        with Locked(directory) as handle:  # else it may be what somebody is clearing just now
            name = os.path.basename(path)
            found, content = os.lstat(name, dir_fd=handle), b""
            if stat.S_ISREG(found.st_mode):
                try:
                    content, found = _read_regular(name, handle)
                except PermissionError:
                    pass
            os.unlink(name, dir_fd=handle)
            return Signal(kind, path_of(directory, kind), found, content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SignalError(f"cannot remove {path}: {os.strerror(error.errno or errno.EIO)}") from None


def _put_back(handle: int, name: str) -> None:
    """Give a signal that was moved aside its place again, unless a newer one has taken it."""
    try:
        os.link(name + _TAKEN, name, src_dir_fd=handle, dst_dir_fd=handle, follow_symlinks=False)
    except FileNotFoundError:
        return
    except FileExistsError:
        pass
    except OSError:
        # No hard links here (FAT), none of directories, or, with Linux's protected_hardlinks, none of a file that
        # another user wrote: what `sudo sidecar stop` leaves is one.
        if _rename_if_free(handle, name + _TAKEN, name):
            return
    os.unlink(name + _TAKEN, dir_fd=handle)


def _rename_if_free(handle: int, source: str, target: str) -> bool:
    """Rename, but never over something newer: False where the target's name is taken."""
    import ctypes  # noqa: PLC0415 - rarely needed, and slow to import

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Python has no name for it
    if rename is not None:
        if rename(handle, os.fsencode(source), handle, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return True
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            return False
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code))
    # Neither hard links nor this flag: look, and accept the microsecond between the look and the rename.
    try:
        os.lstat(target, dir_fd=handle)
    except FileNotFoundError:
        os.rename(source, target, src_dir_fd=handle, dst_dir_fd=handle)
        return True
    return False
