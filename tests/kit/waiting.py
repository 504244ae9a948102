"""Waiting for something that nothing announces: look again, under a deadline that only a bug reaches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import psutil

DEADLINE_S = 120.0
PAUSE_S = 0.01


def until(what: Callable[[], Any], *, within_s: float = DEADLINE_S, shown: Callable[[], object] | None = None) -> Any:
    """The first true value that `what` returns. `shown` returns what the failure message displays."""
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, _late(within_s, shown)
        time.sleep(PAUSE_S)
    return found


async def eventually(
    what: Callable[[], Any], *, within_s: float = DEADLINE_S, shown: Callable[[], object] | None = None
) -> Any:
    """`until` for a test that runs in an event loop."""
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, _late(within_s, shown)
        await anyio.sleep(PAUSE_S)
    return found


def _late(within_s: float, shown: Callable[[], object] | None) -> str:
    return f"not within {within_s:g} s" + (f": {shown()}" if shown else "")


def alive(pid: int) -> bool:
    """Whether a process exists and does anything: a zombie does not, unless threads of it still run."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.Error:
        return False
