"""Signals for runs that nobody executes: a process that lives on watches their signal directories, and applies them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import anyio

from sidecar import layout
from sidecar.engine.ending import handle_signal
from sidecar.errors import REPORTED
from sidecar.signals import files, run_lock

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from sidecar.engine.owner import Owner

logger = logging.getLogger("sidecar.daemon")
# How late it may be noticed that another process made a run idle, or left one by dying. A look is a few system calls.
_LOOK_S = 2.0


class IdleWatch:
    """The directories of one project's runs that have not ended."""

    def __init__(self, owner: Owner, look_s: float = _LOOK_S) -> None:
        self._owner = owner
        self._look_s = look_s
        self._watched: set[str] = set()
        self._hint = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. By the time that it is started, what stood there is applied."""
        mark = self._mark()
        seen = mark if self._look() else None
        task_status.started()
        try:
            while True:
                with anyio.move_on_after(self._look_s):
                    await self._hint.wait()
                mark = self._mark()
                if self._hint.is_set() or mark != seen:
                    self._hint = anyio.Event()
                    seen = mark if self._look() else None
        finally:
            self._watch(set())

    def _mark(self) -> tuple[object, ...]:
        """Changes with which runs are open, and with who is executed."""
        root = self._owner.root
        return tuple(run_lock.open_runs(root)), tuple(run_lock.live_runs(root))

    def _look(self) -> bool:
        """Apply what stands there; False where that could not be done now, and has to be tried again."""
        root = self._owner.root
        try:
            directories = {layout.state_directory(root)}
            for run_id in run_lock.open_runs(root):
                mark = run_lock.mark(root, run_id)
                directories.add(layout.run_directory(root, run_id))
                directories |= {mark.workspace} if mark and mark.workspace else set()
            self._watch(directories)
            for directory in self._watched:
                for kind in ("abort", "stop"):
                    signal = files.read(directory, kind)
                    if signal is not None and (ended := handle_signal(self._owner, signal)):
                        did = "aborted" if kind == "abort" else "stopped"
                        self._owner.report(f"{did}, which no process executed: {', '.join(ended)} ({signal.reason})")
        except (*REPORTED, OSError) as error:  # a disk that is full now: the file is still there the next time
            logger.warning("cannot look after idle runs: %s", error)
            return False
        return True

    def _watch(self, directories: set[str]) -> None:
        for directory in self._watched - directories:
            self._owner.watcher.discard(directory, self._on_change)
        for directory in directories - self._watched:
            self._owner.watcher.add(directory, self._on_change)
        self._watched = directories

    def _on_change(self, _: str) -> None:
        self._hint.set()
