"""The long-lived process of a project: it executes detached runs, serves MCP, and sees to runs that nobody holds."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from sidecar import config, layout
from sidecar.engine.ending import end_deadly
from sidecar.engine.execution import wait_until_moved
from sidecar.engine.owner import Owner
from sidecar.errors import REPORTED, ConfigError, SidecarError
from sidecar.service.driving import Driving
from sidecar.service.idle_watch import IdleWatch
from sidecar.service.keeping import remove_surplus
from sidecar.service.owners import LocalExecutor, LocalRuns, accept_delegated
from sidecar.service.systemd import Pulse
from sidecar.signals import run_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from sidecar.config import Project
    from sidecar.store.journal import StoredRun

    # Serves the use cases to the project's clients, and makes the endpoints of its runs.
    Serve = Callable[[Driving, LocalRuns], AbstractAsyncContextManager[object]]

logger = logging.getLogger("sidecar.daemon")
_COMPACT_EVERY_S = 3600.0
# What is made once, for all runs: the rest is looked up whenever it is needed.
_AT_START = ("watcher", "containment", "projects", "http_token", "otlp_endpoint", "otlp_headers")
_LEFT = ("running", "interrupted")  # the first: though nobody holds it, since its owner died


class Daemon:
    """The daemon of one project, from its lock to the last checkpoint."""

    def __init__(self, project: Project, serve: Serve, report: Callable[[str], None]) -> None:
        self._project = project
        self._serve = serve
        self._report = report
        self._ending = anyio.Event()
        self._lost: SidecarError | None = None
        self._executor: LocalExecutor | None = None
        self._use_cases: Driving | None = None
        self.begun = anyio.Event()  # it serves now, or never will

    def pulse(self) -> Pulse | None:
        """How it is at this moment; None while it does not serve."""
        if self._use_cases is None or self._executor is None:
            return None
        owner, at_work = self._use_cases.owner, self._executor.at_work
        agents = len(owner.supervisor.agents)
        return Pulse(owner.root, owner.watcher.turns, at_work, agents, owner.settings.kill_after_s)

    def end(self) -> None:
        """End: its runs are interrupted by the ladder; a second time, without grace."""
        if self._ending.is_set() and self._executor is not None:
            self._executor.hurry()
        self._ending.set()

    @property
    def project(self) -> Project:
        """With the settings that hold now."""
        return self._project if self._use_cases is None else self._use_cases.project

    def reload(self) -> list[tuple[int, str]]:
        """Settings are read again: what to log of it. Workflows, agents and prompts are read whenever one is needed."""
        if self._use_cases is None:
            return []
        project = self.project
        try:
            settings = config.load(project.root, project.environment)
        except ConfigError as error:
            return [(logging.WARNING, f"the settings of {project.root} stay as they were: {error}")]
        self._use_cases.project = replace(project, settings=settings)
        self._use_cases.owner.settings = settings
        at_start = self._project.settings
        late = [name for name in _AT_START if getattr(settings, name) != getattr(at_start, name)]
        told = [(logging.INFO, f"read the settings of {project.root} again")]
        if late:
            told.append((logging.WARNING, f"changed, but read only when the daemon starts: {', '.join(late)}"))
        return told

    async def run(self) -> None:
        """Until it is ended. SidecarError: it cannot be the daemon of this project, and why."""
        try:
            await self._serve_project(self._project)
        finally:
            self._use_cases = self._executor = None
            self.begun.set()

    async def _serve_project(self, project: Project) -> None:
        with daemon_lock(project.root) as is_ours:
            async with (
                Owner(project.root, project.settings, project.environment, self._report) as owner,
                anyio.create_task_group() as executions,
            ):
                runs = LocalRuns(owner)
                executor = self._executor = LocalExecutor(runs, executions)
                use_cases = self._use_cases = Driving(project, owner, executor, on_event=owner.emit)
                async with self._serve(use_cases, runs), anyio.create_task_group() as beside:
                    await beside.start(IdleWatch(owner).run)  # first: what is aborted is not resumed
                    beside.start_soon(self._compact, owner)
                    beside.start_soon(self._keep_place, is_ours)
                    await beside.start(accept_delegated, project.root, executor.begin)
                    self.begun.set()  # a run that cannot be resumed quickly keeps nobody waiting
                    await self._resume(owner, executor)
                    self._report(f"the daemon of {project.root} is process {os.getpid()}")
                    await self._ending.wait()
                    # Nobody hands over to who is about to go; but agents still get their answers.
                    beside.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await executor.interrupt()
        if self._lost is not None:
            raise self._lost

    async def _keep_place(self, is_ours: Callable[[], bool]) -> None:
        """End when the place was taken away, by `git clean` for one: nobody finds us there, and another daemon, which
        whoever keeps us running starts then, would serve the project beside us."""
        await wait_until_moved(is_ours)
        path = layout.daemon_lock(self._project.root)
        self._lost = SidecarError(f"{path} was removed or replaced; a daemon that is started now will do")
        self.end()

    async def _resume(self, owner: Owner, executor: LocalExecutor) -> None:
        for run in reversed(owner.journal.runs(statuses=_LEFT)):
            if self._ending.is_set():
                return
            if not _is_resumed(owner.root, run):
                continue
            try:
                left = end_deadly(owner, run)
                if left is not None:
                    if run.status == "running":  # the others were told when it was journalled
                        owner.emit(left.run_event)
                    self._report(f"run {run.run_id} ({run.workflow}) is not resumed: {left.data['reason']}")
                    continue
                await executor.begin(run.run_id)
                self._report(f"resumed run {run.run_id} ({run.workflow})")
            except (*REPORTED, OSError) as error:
                self._report(f"cannot resume run {run.run_id} ({run.workflow}): {error}")
            except Exception:  # one run must not keep the daemon from all others
                logger.exception("cannot resume run %s", run.run_id)

    async def _compact(self, owner: Owner) -> None:
        while True:
            await remove_surplus(owner)
            await anyio.sleep(_COMPACT_EVERY_S)


def _is_resumed(root: str, run: StoredRun) -> bool:
    """Only what was to go on without anybody: never what a person stopped, aborted, or began in a terminal."""
    return bool(run.details.get("detached")) and run.driver == "server" and not run_lock.is_live(root, run.run_id)


@contextmanager
def daemon_lock(root: str) -> Iterator[Callable[[], bool]]:
    """The right to be the project's daemon, as long as this process lives at most, and the file is the one we hold."""
    path = layout.daemon_lock(root)
    try:
        layout.make_directory(os.path.dirname(path))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SidecarError(f"cannot open {path}: {error.strerror}") from None
    try:
        holder = run_lock.lock_or_holder(file)
        if holder is not None:
            raise SidecarError(f"{root} has a daemon already: process {holder}")
        os.ftruncate(file, os.pwrite(file, b"%d\n" % os.getpid(), 0))
        yield lambda: run_lock.is_at(path, file)
    finally:
        os.close(file)
