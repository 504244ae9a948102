"""Standard input and output as the byte streams of one connection, with nobody else's output between the messages.

While it lasts, descriptor 0 is empty and descriptor 1 is standard error: what agents, libraries and `print` read and
write misses the wire.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sidecar.mcp_server.descriptors import Output, StandardInput


@asynccontextmanager
async def standard_streams() -> AsyncIterator[tuple[StandardInput, Output]]:
    """The wire, taken away from everybody else for as long as the block lasts."""
    sys.stdout.flush()
    wire_in, wire_out = os.dup(0), os.dup(1)
    output = Output(wire_out)
    try:
        _divert()
        try:
            yield StandardInput(wire_in), output
        finally:
            # What was printed meanwhile waits in a buffer: it must be gone before descriptor 1 is the wire again.
            sys.stdout.flush()
            os.dup2(wire_in, 0)
            os.dup2(wire_out, 1)
    finally:
        await output.aclose()
        os.close(wire_in)
        os.close(wire_out)


def _divert() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
