"""Metrics and traces of an owner's runs, where the settings ask for them; only a daemon counts what nobody asks for."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import anyio

from sidecar.errors import SidecarError, UnwrappedErrors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from anyio.abc import TaskGroup

    from sidecar.notify.otlp import Exporter
    from sidecar.service.metrics import Metrics
    from sidecar.service.owners import LocalRuns

    Page = Callable[[], str | None]  # None: it is not to be had now

METRICS_PATH = "/metrics"
_WRITE_EVERY_S = 10.0


@asynccontextmanager
async def observing(runs: LocalRuns, *, counts: bool = False) -> AsyncIterator[dict[str, Page]]:
    """Listens to the runs of an owner; gives the pages that its web server shall have, if it has one.

    `counts`: it lives long enough for its numbers to mean something, and is the only one in the project that does. It
    does so whatever the settings say, which only say who is told: they may be read again, and a count that began in the
    middle would be wrong.
    """
    is_traced = runs.owner.settings.otlp_endpoint is not None
    if not counts and not is_traced:
        yield {}
        return
    with UnwrappedErrors():
        async with anyio.create_task_group() as tasks:
            metrics = _metrics(runs) if counts else None
            exporter = _exporter(runs, tasks) if is_traced else None
            if metrics is not None:
                tasks.start_soon(_keep, runs, metrics)
            try:
                yield {METRICS_PATH: partial(_shown, runs, metrics)} if metrics is not None else {}
            finally:
                with anyio.CancelScope(shield=True):
                    if metrics is not None:
                        _write(runs, metrics)
                    if exporter is not None:
                        await exporter.finish()
                tasks.cancel_scope.cancel()


def _metrics(runs: LocalRuns) -> Metrics:
    from sidecar.service.metrics import Metrics  # noqa: PLC0415 - only for a daemon

    journal = runs.owner.journal
    metrics = Metrics(runs.owner.root, lambda: [status for _, status, _ in journal.standings()])
    runs.listeners.add(metrics.hear)
    return metrics


def _exporter(runs: LocalRuns, tasks: TaskGroup) -> Exporter | None:
    from sidecar.notify.otlp import Exporter  # noqa: PLC0415 - only for those who have it set

    try:
        exporter = Exporter(runs.owner, runs.owner.settings.otlp_endpoint or "")
    except SidecarError as error:  # no reason not to run anything
        runs.owner.report(str(error))
        return None
    runs.listeners.add(exporter.hear)
    tasks.start_soon(exporter.run)
    return exporter


def _shown(runs: LocalRuns, metrics: Metrics) -> str | None:
    return metrics.text() if runs.owner.settings.metrics else None


async def _keep(runs: LocalRuns, metrics: Metrics) -> None:
    while True:
        _write(runs, metrics)
        await anyio.sleep(_WRITE_EVERY_S)


def _write(runs: LocalRuns, metrics: Metrics) -> None:
    path = runs.owner.settings.metrics_file
    if path is None:
        return
    from sidecar.signals import files  # noqa: PLC0415 - as above

    directory, name = os.path.split(os.path.join(runs.owner.root, os.path.expanduser(path)))
    try:
        # Whole or not at all: the collector may read at any moment.
        files.replace(directory, name, metrics.text().encode("utf-8", "surrogateescape"))
    except (OSError, SidecarError) as error:
        runs.owner.report(f"cannot write {path}: {error}")
