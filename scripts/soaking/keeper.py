"""The daemon of a soak: started again at once whenever it is gone, as a service manager does, and measured."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import anyio
import psutil

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from soaking.project import Soaked

_LOOK_S = 0.05
_HANGS_S = 60.0  # neither ready nor gone after this long
_READY = "is process"


class Keeper:
    """One daemon after the other."""

    def __init__(self, soaked: Soaked) -> None:
        self._soaked = soaked
        self._log = soaked.place / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False  # to end, or killed
        self._began_at = 0  # in its log
        self._due_at = 0.0  # when it has to be ready, or gone
        self.kills = 0
        self.restarts = 0
        self.deaths: list[str] = []  # that nobody asked for
        self.may_die = False  # its disk is full: it may give up, and is started again

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; the daemon of that moment lives on."""
        self.start()
        task_status.started()
        while True:
            await anyio.sleep(_LOOK_S)
            assert self._process is not None
            code = self._process.poll()
            if code is not None:
                if not self._asked and not self.may_die:
                    self.deaths.append(f"exit {code}: {self.said()[-3000:]}")
                self.start()
            elif time.monotonic() > self._due_at and (self._asked or not self.is_ready()):
                self._asked = self.may_die = False
                self._due_at = float("inf")
                self._process.send_signal(signal.SIGABRT)  # it says where it hangs

    def start(self) -> None:
        """One more."""
        self._began_at = self._log.stat().st_size if self._log.exists() else 0
        self._asked = False
        self._due_at = time.monotonic() + _HANGS_S
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sidecar", "daemon"],
                cwd=self._soaked.root,
                env={**self._soaked.environment, "PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None and self._process.poll() is None:
            self._asked = True
            self.kills += 1
            self._process.send_signal(signal.SIGKILL)

    def restart(self) -> None:
        """As a service manager does it: it may take its time, and is started again."""
        if self._process is not None and self._process.poll() is None and not self._asked:
            self._asked = True
            self._due_at = time.monotonic() + _HANGS_S
            self.restarts += 1
            self._process.send_signal(signal.SIGTERM)

    def said(self) -> str:
        """What this one has said."""
        with self._log.open("rb") as log:
            log.seek(self._began_at)
            return log.read().decode(errors="replace")

    @property
    def pid(self) -> int:
        """Of the one there is now."""
        return self._process.pid if self._process is not None else 0

    def is_ready(self) -> bool:
        """It serves, and has resumed what there was to resume."""
        return self._process is not None and self._process.poll() is None and _READY in self.said()

    async def until_ready(self) -> None:
        """Wait for that. One that never is, is noticed by who keeps it."""
        while not self.is_ready():
            await anyio.sleep(_LOOK_S)

    def end(self, within_s: float = 60.0) -> int:
        """By SIGTERM; its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(within_s)

    def figures(self) -> dict[str, float]:
        """What it holds now."""
        assert self._process is not None
        process = psutil.Process(self._process.pid)
        return {
            "at": time.monotonic(),
            "rss_mb": process.memory_info().rss / 2**20,
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
            "children": len(process.children(recursive=True)),
        }
