"""A unix socket that listens at a path for as long as a block lasts."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar.agents import socket_path
from sidecar.errors import SidecarError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator


@contextmanager
def bound(path: str) -> Iterator[socket.socket]:
    """A socket that listens at the path. The file goes with it, unless somebody else's is there by then."""
    try:
        listening = socket_path.bind(path)
    except OSError as error:
        raise SidecarError(f"cannot listen on {path}: {error.strerror}") from None
    ours = _identity(path)
    try:
        yield listening
    finally:
        listening.close()
        if ours is not None and _identity(path) == ours:
            os.unlink(path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
