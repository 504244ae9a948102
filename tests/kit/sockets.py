"""Connections to Unix sockets whose path is longer than a socket's address may be."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path


def connect(path: Path) -> socket.socket:
    """A connection to the process that listens there; OSError where none does."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with tempfile.TemporaryDirectory(prefix="sidecar-test-", dir="/tmp") as short:
            os.symlink(path.parent.absolute(), f"{short}/d")
            connected.connect(f"{short}/d/{path.name}")
    except BaseException:
        connected.close()
        raise
    return connected
