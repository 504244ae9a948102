"""Signal files: how one is written, looked at, read and cleared, and what stands inside.

The existence of the name is the signal; everything here goes by `lstat`, so a dangling link or a FIFO signals
too, and only a regular file is ever opened. The content is free text, the reason, and a last paragraph of trailers,
as git adds them to commits. A paragraph counts as trailers only if every line of it is a known one with a sensible
value: a reason that reads `Run: the tests first` must not be taken for a signal to some other run and ignored.

Standard library only: `sidecar stop` is little more than this.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import stat
import time

from sidecar.errors import SignalError
from sidecar.model import ulid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Literal

    Kind = Literal["stop", "abort"]

FILE_NAMES: dict[Kind, str] = {"stop": ".stop", "abort": ".abort"}
NO_REASON: dict[Kind, str] = {"stop": "no reason given", "abort": "Unknown abort reason"}
MAX_BYTES = 64 * 1024
_CUT = "\n[cut: the reason was longer than a signal file may be]"
READABLE = 0o644
_TAKEN = ".taken"
_LOCK_PATIENCE_S = 1.0
_RENAME_NOREPLACE = 1  # linux/fs.h
# The system call behind it is missing from older systems, and older container sandboxes forbid it: there `access`
# says of everything that it does not exist, and no signal would ever be seen.
_ACCESS_WORKS = os.access in os.supports_follow_symlinks and os.access("/", os.F_OK, follow_symlinks=False)


class Trailers:
    """The known trailers of one signal; None where the writer gave none."""

    __slots__ = ("expires_at", "requested_at", "requested_by", "run_id", "signal_id", "timeout_s")

    def __init__(
        self,
        *,
        signal_id: str | None = None,
        requested_at: str | None = None,
        requested_by: str | None = None,
        run_id: str | None = None,
        expires_at: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.signal_id = signal_id
        self.requested_at = requested_at
        self.requested_by = requested_by
        self.run_id = run_id
        self.expires_at = expires_at
        self.timeout_s = timeout_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trailers) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in self.__slots__ if getattr(self, name) is not None)
        return f"Trailers({', '.join(given)})"


class Signal:
    """A signal as it was found: which file, why, by whom, and enough to recognise that very file again."""

    __slots__ = ("arrived_at", "fingerprint", "kind", "occurrence", "path", "reason", "trailers")

    def __init__(self, kind: Kind, path: str, found: os.stat_result, content: bytes) -> None:
        reason, self.trailers = parse(content)
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


def occurrences(directory: str) -> list[str]:
    """What stands in a directory now: each signal's `occurrence`."""
    found = []
    for name in FILE_NAMES.values():
        try:
            found.append(_occurrence(os.lstat(f"{directory}/{name}")))
        except OSError:
            continue
    return found


def with_late_content(signal: Signal) -> Signal:
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
        replace(directory, FILE_NAMES[kind], compose(reason, trailers), inside=inside, for_all=False)
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
        raise SignalError(f"a newer signal was written to {signal.path} meanwhile; it is still there")
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


def replace(directory: str, name: str, data: bytes, *, inside: str | None = None, for_all: bool = True) -> None:
    """Give a file this content atomically: temporary file beside it, synced, renamed, directory synced.

    `for_all`: every user may read it, whatever the umask, as receipts and what says that a run is open have to be read.
    A signal has the permissions that its writer's umask leaves.
    """
    handle = _open_directory(directory)
    try:
        if inside is not None:
            _refuse_outside(handle, inside)
        temporary = f"{name}.{os.urandom(8).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, READABLE, dir_fd=handle)
        try:
            try:
                if for_all:
                    os.fchmod(file, READABLE)
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


def new_trailers(*, run_id: str | None = None, timeout_s: float | None = None) -> Trailers:
    """The trailers of a signal that is being written here and now, by this user on this machine."""
    return Trailers(
        signal_id=ulid.new(),
        requested_at=timestamp(time.time()),
        requested_by=_word(f"{_user()}@{os.uname().nodename}"),
        run_id=run_id,
        timeout_s=timeout_s,
    )


def compose(reason: str, trailers: Trailers) -> bytes:
    """The bytes of a signal file. A reason that would push the trailers out of reach of readers is cut."""
    lines = [f"{name}: {_written(getattr(trailers, slot))}" for name, slot, _ in _KNOWN if getattr(trailers, slot)]
    tail = ("\n".join(lines) + "\n").encode()
    body = _encode(reason.strip())
    room = MAX_BYTES - len(tail) - 2
    if len(body) > room:
        cut = _CUT.encode()
        body = body[: room - len(cut)].decode(errors="ignore").encode() + cut
    return body + b"\n\n" + tail if body else tail


def parse(content: bytes) -> tuple[str, Trailers]:
    """Reason and trailers of any bytes whatsoever; never raises."""
    text = content[:MAX_BYTES].decode(errors="replace").strip()
    if len(content) > MAX_BYTES:  # the last paragraph in reach is not the last one of the file
        return _readable(text), Trailers()
    reason, _, last = max((text.rpartition(blank) for blank in ("\n\n", "\r\n\r\n")), key=lambda parts: len(parts[0]))
    trailers = _parse_paragraph(last)
    return (_readable(text), Trailers()) if trailers is None else (reason.strip(), trailers)


def timestamp(seconds: float) -> str:
    """A moment as the trailers write it, in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def parse_timestamp(text: str) -> float | None:
    """The seconds of a timestamp, or None if it is none."""
    from datetime import UTC, datetime  # noqa: PLC0415 - readers only: writers must start fast

    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _open_directory(directory: str) -> int:
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        # A drop box: files can be put into it by people who may not list it.
        return os.open(directory, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)


def _refuse_outside(handle: int, inside: str) -> None:
    """Both as the kernel names them: no later swap of a name changes what is asked here, and a name that was typed in
    another case is the same name."""
    where = _real_path(handle)
    if where is None:  # the look before has to do
        return
    top = _open_directory(inside)
    try:
        around = _real_path(top) or inside
    finally:
        os.close(top)
    if not f"{where}/".startswith(f"{around.rstrip('/')}/"):
        raise OSError(errno.EXDEV, f"it leads outside the project, to {where}")


def _real_path(handle: int) -> str | None:
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


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's nameless user
        return str(os.getuid())


def _readable(text: str) -> str:
    """The text, or nothing where the file held something binary: noise is no reason."""
    is_text = "\0" not in text and any(sign.isprintable() and sign not in " \ufffd" for sign in text)
    return text if is_text else ""


def _parse_paragraph(paragraph: str) -> Trailers | None:
    found: dict[str, object] = {}
    for line in paragraph.split("\n"):
        name, separator, value = line.partition(":")
        known = _BY_NAME.get(name.lower())
        parsed = known[1](value.strip()) if known and separator else None
        if known is None or parsed is None or known[0] in found:
            return None
        found[known[0]] = parsed
    return Trailers(**found)  # type: ignore[arg-type]


def _word(text: str) -> str | None:
    """One line of visible text."""
    return text if text and len(text) <= 256 and text.isprintable() else None


def _id(text: str) -> str | None:
    return _word(text) if " " not in text else None


def _run_id(text: str) -> str | None:
    return text if ulid.is_valid(text) else None


def _moment_text(text: str) -> str | None:
    return text if parse_timestamp(text) is not None else None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


_KNOWN: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    ("Signal-Id", "signal_id", _id),
    ("Requested-At", "requested_at", _moment_text),
    ("Requested-By", "requested_by", _word),
    ("Run", "run_id", _run_id),
    ("Expires", "expires_at", _moment_text),
    ("Timeout", "timeout_s", _seconds),
)
_BY_NAME = {name.lower(): (slot, check) for name, slot, check in _KNOWN}


def _written(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # arguments that were not UTF-8 arrive this way
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
