"""A wall clock that can be stepped, seen only by processes that are started under it; `clock.c` says what a step is."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_TABLE, _LIBRARY = "clock", "clock.so"
_MOST_STEPS = 65_536
_AHEAD_S = 0.02  # a step is known to everybody before it holds
_TICK_S = 0.012  # the clock that dates files lags behind by a tick of the kernel
_COUNT, _STEP = struct.Struct("=Q"), struct.Struct("=qq")
_SIZE = _COUNT.size + _MOST_STEPS * _STEP.size
_PROBE = "import os, sys, time; os.utime(sys.argv[1]); print(time.time(), os.stat(sys.argv[1]).st_mtime)"
_PROBED_S = 1_000_000.0


class Clock:
    """The steps of one clock, as whoever sets it writes them. It begins with none, and is the machine's own clock."""

    def __init__(self, place: Path) -> None:
        """Of the processes that were started with the variables of `prepared` for this place; maybe this one."""
        with (place / _TABLE).open("r+b") as file:
            self._table = mmap.mmap(file.fileno(), _SIZE)
        self.steps = 0
        # No step moves TAI, so it stays as far from the machine's own clock as it is now.
        self._to_real_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_TAI)

    def set(self, offset_s: float) -> None:
        """Set it, that far from the machine's own clock; it holds when this returns, for files too."""
        from_ns = time.clock_gettime_ns(time.CLOCK_TAI) + self._to_real_ns + round(_AHEAD_S * 1e9)
        _STEP.pack_into(self._table, _COUNT.size + self.steps * _STEP.size, from_ns, round(offset_s * 1e9))
        self.steps += 1
        _COUNT.pack_into(self._table, 0, self.steps)  # last: what it counts is whole
        time.sleep(_AHEAD_S + _TICK_S)

    def close(self) -> None:
        """Leave the steps to those who read them."""
        self._table.close()


def prepared(place: Path) -> dict[str, str] | str:
    """The variables that put a process under a clock of its own; or why there can be none here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return "no C compiler"
    library, table = place / _LIBRARY, place / _TABLE
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        return f"{_SOURCE.name} does not compile: {built.stderr.splitlines()[0] if built.stderr else 'no word why'}"
    with table.open("wb") as file:
        file.truncate(_SIZE)
    before = os.environ.get("LD_PRELOAD")
    variables = {"LD_PRELOAD": f"{library}:{before}" if before else str(library), "SOAK_CLOCK": str(table)}
    wrong = _probed(place, {**os.environ, **variables})
    with table.open("r+b") as file:  # the step of the probe is taken out again
        file.write(bytes(_COUNT.size + _STEP.size))
    return wrong or variables


def _probed(place: Path, environment: dict[str, str]) -> str | None:
    """Programs elsewhere may ask another way for the time, or have no C library: then nothing would be stepped."""
    clock, file = Clock(place), place / "probe"
    try:
        file.touch()
        clock.set(_PROBED_S)
        asked = subprocess.run(
            [sys.executable, "-c", _PROBE, str(file)], env=environment, capture_output=True, text=True, check=False
        )
        told = [float(word) - time.time() for word in asked.stdout.split()]
    finally:
        file.unlink(missing_ok=True)
        clock.close()
    if len(told) == 2 and all(abs(apart_s - _PROBED_S) < _PROBED_S / 2 for apart_s in told):
        return None
    return f"a step does not reach {sys.executable}: {asked.stderr.strip() or told}"
