"""`sidecar daemon`: the long-lived process of one project or of several."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from sidecar.cli.options import parser
from sidecar.errors import REPORTED, ConfigError, unwrapped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskStatus

    from sidecar.config import Project
    from sidecar.service.daemon import Daemon
    from sidecar.service.driving import Driving
    from sidecar.service.owners import LocalRuns
    from sidecar.service.systemd import Pulse, Systemd

logger = logging.getLogger("sidecar.daemon")
OK, FAILED = 0, 2
_HTTP_HOST = "127.0.0.1"


def main(arguments: list[str], project: str | None) -> int:
    """Be the daemon until SIGTERM or Ctrl-C; the exit code."""
    options = parser("daemon").parse_args(arguments)
    import anyio  # noqa: PLC0415 - `--help` needs none of this

    from sidecar.service.systemd import Systemd  # noqa: PLC0415

    systemd = Systemd.taken_from(os.environ)  # before the environment becomes that of agents
    faulthandler.enable()  # where the watchdog has to end us, the log says what we hung in
    found = _projects([*([project] if project else []), *options.project])
    _log(found[0])
    http = _address(options.http) if options.http else None
    if http is not None and len(found) > 1:
        raise ConfigError("--http serves one project: start a daemon for each, or leave it out")
    return anyio.run(_Process(found, http, systemd).run)


def _log(first: Project) -> None:
    """One process has one log: where it serves several projects, the first says how much goes there."""
    from sidecar.service import logging_setup  # noqa: PLC0415

    settings = first.settings
    logging_setup.set_up(sys.stderr, settings.log_level, first.environment, settings.secret_values(first.environment))


def _projects(named: list[str]) -> list[Project]:
    from sidecar.config import open_project  # noqa: PLC0415

    if named:
        found = [open_project(name) for name in named]
    else:
        first = open_project(None)
        listed = [open_project(os.path.expanduser(name)) for name in first.settings.projects]
        found = listed or [first]
    return list({project.root: project for project in found}.values())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--http takes HOST:PORT or PORT, not {text!r}")
    return host.strip("[]") or _HTTP_HOST, int(port)


class _Process:
    """The process: its projects, its signals, its exit code."""

    def __init__(self, projects: list[Project], http: tuple[str, int] | None, systemd: Systemd) -> None:
        from sidecar.service.daemon import Daemon  # noqa: PLC0415

        serve = partial(_serve, http=http)
        self._daemons: list[tuple[str, Daemon]] = [(each.root, Daemon(each, serve, _log_line)) for each in projects]
        self._failed = 0
        self._systemd = systemd

    async def run(self) -> int:
        """Until it is told to end. One project that cannot be served does not keep the others from it."""
        import anyio  # noqa: PLC0415

        async with anyio.create_task_group() as signals:
            await signals.start(self._obey)
            signals.start_soon(self._notify_systemd)
            async with anyio.create_task_group() as tasks:
                for root, daemon in self._daemons:
                    tasks.start_soon(self._keep, root, daemon)
            signals.cancel_scope.cancel()
        return FAILED if self._failed == len(self._daemons) else OK

    async def _keep(self, root: str, daemon: Daemon) -> None:
        try:
            await daemon.run()
        except Exception as error:
            self._failed += 1
            cause = unwrapped(error)
            if isinstance(cause, (*REPORTED, OSError)):
                logger.error("there is no daemon for %s: %s", root, cause)
            else:
                logger.error("there is no daemon for %s", root, exc_info=error)

    async def _obey(self, *, task_status: TaskStatus[None]) -> None:
        import anyio  # noqa: PLC0415

        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    self._reload()
                    continue
                self._systemd.ending(self._pulses())
                for _, daemon in self._daemons:
                    daemon.end()

    def _reload(self) -> None:
        self._systemd.reloading()
        told = [one for _, daemon in self._daemons for one in daemon.reload()]
        _log(self._daemons[0][1].project)  # before anything is said: the settings say how much is
        for level, text in told:
            logger.log(level, "%s", text)
        self._systemd.reloaded()

    async def _notify_systemd(self) -> None:
        for _, daemon in self._daemons:
            await daemon.begun.wait()
        if self._pulses():
            await self._systemd.serving(self._pulses)

    def _pulses(self) -> list[Pulse]:
        found = [daemon.pulse() for _, daemon in self._daemons]
        return [pulse for pulse in found if pulse is not None]


@asynccontextmanager
async def _serve(use_cases: Driving, runs: LocalRuns, http: tuple[str, int] | None) -> AsyncIterator[None]:
    """The daemon's endpoints, and what is subscribed to its runs."""
    from sidecar.mcp_server import endpoints  # noqa: PLC0415
    from sidecar.notify.notices import notifications  # noqa: PLC0415
    from sidecar.notify.telemetry import observed  # noqa: PLC0415
    from sidecar.service import logging_setup  # noqa: PLC0415

    async with (
        notifications(runs.owner) as on_event,
        observed(runs, counts=True) as pages,
        endpoints.daemon_endpoints(use_cases, runs, http=http, pages=pages),
    ):
        runs.listeners |= {on_event, logging_setup.following(runs.owner.root)}
        yield


def _log_line(text: str) -> None:
    logger.info("%s", text)
