"""`sidecar serve` where nobody else serves: this process is the server, and executes no run that should outlive it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio

from sidecar.config import open_project
from sidecar.errors import UnwrappedErrors
from sidecar.mcp_server.calls import Site
from sidecar.mcp_server.server import serving
from sidecar.mcp_server.transport_stdio import standard_streams
from sidecar.service import keeping
from sidecar.service.driving import Driving
from sidecar.service.owners import DetachedExecutor, open_owner

if TYPE_CHECKING:
    from collections.abc import Mapping

_SIGNALLED = 128
logger = logging.getLogger(__name__)


def main(root: str, environment: Mapping[str, str]) -> int:
    """Serve until the client's end of file, or a signal; the exit code."""
    logging.basicConfig(stream=sys.stderr, format="sidecar: %(message)s")
    with UnwrappedErrors():
        return anyio.run(_serve, root, dict(environment))


async def _serve(root: str, environment: dict[str, str]) -> int:
    received: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def obey() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    received.append(number)
                    tasks.cancel_scope.cancel()

        tasks.start_soon(obey)
        project = open_project(root, environment)
        async with (
            standard_streams() as (source, sink),
            open_owner(project, logger.warning) as owner,
        ):
            cases = Driving(project, owner, DetachedExecutor(project, owner.journal))
            async with serving(Site(cases, root, environment.get("SIDECAR_RUN_ID") or None)) as server:
                await server.serve(source, sink)
            await keeping.remove_surplus(owner, at_most=keeping.AT_MOST)
        tasks.cancel_scope.cancel()
    return _SIGNALLED + received[0] if received else os.EX_OK
