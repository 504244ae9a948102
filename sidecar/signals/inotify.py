"""Hints from Linux: one inotify descriptor for every directory, on the event loop, no thread."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections import Counter

_ISDIR_ONLY = 0x01000000  # IN_ONLYDIR
_CLOSE_WRITE = 0x00000008
_MOVED_TO = 0x00000080
_CREATE = 0x00000100
_DELETE = 0x00000200
_DELETE_SELF = 0x00000400
_MOVE_SELF = 0x00000800
_UNMOUNT = 0x00002000
_Q_OVERFLOW = 0x00004000
_IGNORED = 0x00008000
# No "moved from", "open" or "close without writing": agents cause masses of them, and none makes a signal appear.
_MASK = _CREATE | _MOVED_TO | _CLOSE_WRITE | _DELETE | _DELETE_SELF | _MOVE_SELF | _ISDIR_ONLY
_ITSELF = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED

_EVENT = struct.Struct("iIII")  # descriptor of the watch, mask, cookie, length of the name that follows
_READ_BYTES = 65536


class Inotify:
    """An event source. Raises OSError where the kernel grants no descriptor, or is not Linux."""

    def __init__(self) -> None:
        self.names: Counter[bytes] = Counter()
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, self._remove = libc.inotify_add_watch, libc.inotify_rm_watch
            self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except AttributeError:
            raise OSError(errno.ENOSYS, "there is no inotify on this system") from None
        if self._descriptor < 0:
            raise _last_error(EMFILE="no inotify instance is left: sysctl fs.inotify.max_user_instances, or ulimit -n")
        self._add.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
        self._remove.argtypes = [ctypes.c_int, ctypes.c_int]
        self._watch_of: dict[str, int] = {}
        # Two spellings of one directory (through a link) are one watch to the kernel.
        self._directories_of: dict[int, tuple[str, ...]] = {}

    def fileno(self) -> int:
        """Readable when there is something to drain."""
        return self._descriptor

    def arm(self, directory: str) -> bool:
        """Hint from now on about what happens in the directory that stands at this path now."""
        watch: int = self._add(self._descriptor, os.fsencode(directory), _MASK)
        if watch < 0:
            raise _last_error(ENOSPC="the limit of inotify watches is reached: sysctl fs.inotify.max_user_watches")
        if self._watch_of.get(directory) != watch:
            self.disarm(directory)
            self._watch_of[directory] = watch
            self._directories_of[watch] = (*self._directories_of.get(watch, ()), directory)
        return True

    def disarm(self, directory: str) -> None:
        """No more hints about this path. Idempotent."""
        watch = self._watch_of.pop(directory, None)
        if watch is None:
            return
        others = tuple(other for other in self._directories_of[watch] if other != directory)
        if others:
            self._directories_of[watch] = others
        else:
            del self._directories_of[watch]
            self._remove(self._descriptor, watch)

    def drain(self) -> set[tuple[str, bytes]] | None:
        """What to look at: a directory and a name in it, or no name for the directory itself. None: everything."""
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return set()
        hints: set[tuple[str, bytes]] = set()
        overflowed = False
        offset, end, names = 0, len(data), self.names
        while offset < end:
            watch, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size + length
            if length:
                name = data[offset - length : offset].rstrip(b"\0")
                if name in names:  # all else is churn, and ends here
                    hints.update((directory, name) for directory in self._directories_of.get(watch, ()))
            elif mask & _Q_OVERFLOW:
                overflowed = True
            elif mask & _ITSELF:
                hints.update((directory, b"") for directory in self._directories_of.get(watch, ()))
                if mask & _IGNORED:
                    self._forget(watch)
        return None if overflowed else hints

    def close(self) -> None:
        """Give the descriptor back, and every watch with it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _forget(self, watch: int) -> None:
        """The kernel has removed this watch by itself."""
        for directory in self._directories_of.pop(watch, ()):
            del self._watch_of[directory]


def _last_error(**meanings: str) -> OSError:
    """The error of the last call. Some numbers mean something else here than their usual words do."""
    number = ctypes.get_errno()
    return OSError(number, meanings.get(errno.errorcode.get(number, ""), os.strerror(number)))
