"""Redirects: texts that a person writes into the directory of a run, for the step that its agent does now."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import anyio

from sidecar import layout
from sidecar.errors import InputError, NotFound, SidecarError
from sidecar.model import ulid

MAX_BYTES = 64 * 1024
_PREFIX = "redirect."
# Polled: the watcher of signals is for files whose loss would cost correctness. An agent takes seconds to start again,
# and a look costs some ten microseconds.
_LOOK_EVERY_S = 0.2
_ORDER_S = 0.005


def redirect(root: str, run_id: str, text: str) -> str:
    """Write a text for a run, atomically, readable for this user only; its path.

    The caller checks whether a process executes the run: else the text waits for the next resume.
    """
    data = text.strip().encode("utf-8", "replace")
    if not data:
        raise InputError("a redirect has to say something")
    if len(data) > MAX_BYTES:
        raise InputError(f"a redirect has at most {MAX_BYTES} bytes, not {len(data)}; put the rest into a file")
    directory = layout.run_directory(root, run_id)
    with _directory(root, run_id) as handle:
        try:
            name = _next_name(handle)
            _put(handle, name, data)
        except OSError as error:
            raise SidecarError(f"cannot write to {directory}: {error.strerror}") from None
    return os.path.join(directory, name)


def waiting(root: str, run_id: str) -> list[tuple[str, str]]:
    """The redirects of a run, oldest first: names, and their texts, empty where there is no text. Never blocks."""
    try:
        with _directory(root, run_id) as handle:
            return [(name, _text(handle, name)) for name in _waiting(handle)]
    except SidecarError:
        return []


def forget(root: str, run_id: str, name: str) -> None:
    """Remove a redirect that was used. One that cannot be removed is known by its name when it is read again."""
    with suppress(SidecarError), _directory(root, run_id) as handle:
        _remove(handle, name)


async def watch(root: str, run_id: str, on_text: Callable[[str, str], Awaitable[None]]) -> None:
    """Call `on_text` with the name and the text of each redirect, until cancelled; then the redirect is removed."""
    used: set[str] = set()
    while True:
        for name, text in waiting(root, run_id):
            if text and name not in used:
                used.add(name)
                await on_text(name, text)
            forget(root, run_id, name)
        await anyio.sleep(_LOOK_EVERY_S)


@contextmanager
def _directory(root: str, run_id: str) -> Iterator[int]:
    """A descriptor of the run's directory; SidecarError where it cannot be opened."""
    if not ulid.is_valid(run_id):
        raise NotFound(f"{run_id!r} is not the id of a run")
    directory = layout.run_directory(root, run_id)
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"no such run: {run_id}") from None
    except OSError as error:
        raise SidecarError(f"cannot open {directory}: {error.strerror}") from None
    try:
        yield handle
    finally:
        os.close(handle)


def _waiting(handle: int) -> list[str]:
    try:
        names = os.listdir(handle)
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(_PREFIX) and ulid.is_valid(name.removeprefix(_PREFIX)))


def _next_name(handle: int) -> str:
    """A name after all others. Ids of one millisecond are in no order: then the next millisecond is waited for, but
    not a clock that was set back."""
    newest = max(_waiting(handle), default="")
    deadline = time.monotonic() + _ORDER_S
    while True:
        is_last = time.monotonic() >= deadline  # before the id: one that is made after a long pause is late enough
        name = _PREFIX + ulid.new()
        if name > newest or is_last:
            return name


def _put(handle: int, name: str, data: bytes) -> None:
    temporary = f".{name}.tmp"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=handle)
    try:
        with open(file, "wb") as written:
            written.write(data)
            written.flush()
            os.fsync(file)
        os.rename(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
    except BaseException:
        _remove(handle, temporary)
        raise


def _text(handle: int, name: str) -> str:
    """The text of one file; empty where it is not a regular file, or is gone already."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        file = os.open(name, flags, dir_fd=handle)
        try:
            data = os.read(file, MAX_BYTES) if stat.S_ISREG(os.fstat(file).st_mode) else b""
        finally:
            os.close(file)
    except OSError:  # a link, or not ours to read
        return ""
    return data.decode("utf-8", "replace").strip()


def _remove(handle: int, name: str) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=handle)
