"""How owner and sentinel talk: length-prefixed JSON over a socket pair, descriptors beside it.

Standard library only: it is one end of the sentinel.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

_HEAD = struct.Struct("!I")
_READ_BYTES = 1 << 16
_MOST_DESCRIPTORS = 64


def packed(message: dict[str, Any]) -> bytes:
    """A message as bytes. JSON escapes lone surrogates, so arguments that are not UTF-8 arrive as they were."""
    body = json.dumps(message).encode("ascii")
    return _HEAD.pack(len(body)) + body


def ancillary(descriptors: list[int]) -> list[tuple[int, int, array.array[int]]]:
    """What sends descriptors beside bytes."""
    if not descriptors:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


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
