"""Which replies are still on their way: an agent that called a tool gets its answer before anybody ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from mcp.types import RequestId

    Key = tuple[int, RequestId | None]  # the connection, and the request on it


class Replies:
    """Calls that were begun and whose reply nobody has written yet."""

    def __init__(self) -> None:
        self._owed: set[Key] = set()
        self._none_owed = anyio.Event()
        self._none_owed.set()

    def owe(self, call: Key) -> None:
        """A call has begun."""
        self._owed.add(call)
        if self._none_owed.is_set():
            self._none_owed = anyio.Event()

    def settle(self, call: Key) -> None:
        """Its reply is out, or will never be. Harmless for a call that nobody counts."""
        self._owed.discard(call)
        if not self._owed:
            self._none_owed.set()

    def forget(self, connection: int) -> None:
        """A connection is gone, and with it whatever was owed there."""
        for call in [call for call in self._owed if call[0] == connection]:
            self.settle(call)

    async def out(self, within_s: float) -> bool:
        """Wait until all replies are out; False where that took too long."""
        with anyio.move_on_after(within_s):
            await self._none_owed.wait()
        return not self._owed
