"""Where the MCP server is reached: the daemon's socket and HTTP, the socket of each run, a client's standard streams.

The SDK takes a second to import. So a process that executes runs imports it when an agent connects, and a daemon in a
thread: an abort does not wait for it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from sidecar import layout
from sidecar.config import open_project
from sidecar.errors import SidecarError, UnwrappedErrors
from sidecar.service import keeping
from sidecar.service.owners import DetachedExecutor, LocalRuns, open_owner
from sidecar.sockets import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from sidecar.config import Project
    from sidecar.mcp_server.server import McpServer
    from sidecar.service.driving import Driving
    from sidecar.service.owners import Owner, RunEndpoint, ServerDriven

_SIGNALLED = 128
_daemon_log = logging.getLogger("sidecar.daemon")
_log = logging.getLogger("sidecar.mcp")


def local_runs(project: Project, owner: Owner) -> LocalRuns:
    """The runs of a process that executes one itself, with an endpoint for its agents. Runs that they start are
    executed by a detached process."""
    runs = LocalRuns(owner)

    def use_cases() -> Driving:
        from sidecar.service.driving import Driving  # noqa: PLC0415 - the agents of most runs never call

        return Driving(project, owner, DetachedExecutor(project, owner.journal, runs), on_event=owner.emit)

    runs.endpoint = _run_endpoint(use_cases, runs)
    return runs


@asynccontextmanager
async def daemon_endpoints(
    use_cases: Driving,
    runs: LocalRuns,
    *,
    http: tuple[str, int] | None = None,
    pages: Mapping[str, Callable[[], str | None]] | None = None,
) -> AsyncIterator[None]:
    """The daemon's socket, and those of its runs; `http`: host and port to listen on too, and `pages` to be read
    there."""
    root = use_cases.project.root
    await _import_server()
    from sidecar.mcp_server import streams  # noqa: PLC0415 - imported by now
    from sidecar.mcp_server.calls import Site  # noqa: PLC0415
    from sidecar.mcp_server.server import serving  # noqa: PLC0415

    runs.endpoint = _run_endpoint(lambda: use_cases, runs)
    async with serving(Site(use_cases, root)) as server, anyio.create_task_group() as tasks:
        with _attached(server, runs):
            await tasks.start(streams.listen, layout.daemon_socket(root), server.serve)
            if http is not None:
                from sidecar.mcp_server import http as streamable_http  # noqa: PLC0415 - few want a web server

                token = use_cases.project.settings.http_token
                port = await tasks.start(streamable_http.listen, server, *http, token, pages)
                host = f"[{http[0]}]" if ":" in http[0] else http[0]
                _daemon_log.info("MCP at http://%s:%d%s", host, port, streamable_http.PATH)
                if token is None:
                    _daemon_log.info(
                        "every user of this machine can call that, and run workflows as you; http_token prevents it"
                    )
            try:
                yield
                # The runs have ended by now, but the clients that wait for them have not read the results.
                await server.wait_other_replies()
            finally:
                tasks.cancel_scope.cancel()


def serve_standard_streams(root: str, environment: Mapping[str, str]) -> int:
    """Serve the client at standard input and output until its end of file, or a signal; the exit code.

    Runs are executed by detached processes: they outlive the client.
    """
    logging.basicConfig(stream=sys.stderr, format="sidecar: %(message)s")
    with UnwrappedErrors():
        return anyio.run(_serve_standard_streams, root, dict(environment))


async def _serve_standard_streams(root: str, environment: dict[str, str]) -> int:
    from sidecar.mcp_server.calls import Site  # noqa: PLC0415
    from sidecar.mcp_server.server import serving  # noqa: PLC0415
    from sidecar.mcp_server.streams import standard_streams  # noqa: PLC0415
    from sidecar.service.driving import Driving  # noqa: PLC0415

    received: list[int] = []
    async with anyio.create_task_group() as tasks:

        async def end_on_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    received.append(number)
                    tasks.cancel_scope.cancel()

        tasks.start_soon(end_on_signal)
        project = open_project(root, environment)
        async with standard_streams() as (source, sink), open_owner(project, _log.warning) as owner:
            use_cases = Driving(project, owner, DetachedExecutor(project, owner.journal))
            async with serving(Site(use_cases, root, environment.get("SIDECAR_RUN_ID") or None)) as server:
                await server.serve(source, sink)
            await keeping.remove_surplus(owner, at_most=keeping.AT_MOST)
        tasks.cancel_scope.cancel()
    return _SIGNALLED + received[0] if received else os.EX_OK


def _run_endpoint(use_cases: Callable[[], Driving], runs: LocalRuns) -> RunEndpoint:
    """Makes the socket of a run. It is bound at once; the server behind it is made at the first connection."""

    @asynccontextmanager
    async def endpoint(execution: ServerDriven) -> AsyncIterator[None]:
        run_id, root = execution.run_id, runs.owner.root

        async def serve() -> None:
            await anyio.wait_readable(listening)
            await _import_server()
            from sidecar.mcp_server import streams  # noqa: PLC0415 - the agents of most runs never call
            from sidecar.mcp_server.calls import Site  # noqa: PLC0415
            from sidecar.mcp_server.server import serving  # noqa: PLC0415

            async with serving(Site(use_cases(), root, run_id)) as server:
                with _attached(server, runs):
                    await streams.accept(listening, server.serve)

        with ExitStack() as stack:
            try:
                listening = stack.enter_context(Listener(layout.run_socket(root, run_id)))
            except SidecarError as error:  # the run can do without
                runs.owner.report(f"the agents of run {run_id} cannot call back: {error}")
                yield
                return
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                try:
                    yield
                finally:
                    tasks.cancel_scope.cancel()

    return endpoint


@contextmanager
def _attached(server: McpServer, runs: LocalRuns) -> Iterator[None]:
    """The server gets the events of every run, and runs wait for its replies before they end an agent."""
    runs.listeners.add(server.on_event)
    runs.replies.add(server.wait_urgent_replies)
    try:
        yield
    finally:
        runs.listeners.discard(server.on_event)
        runs.replies.discard(server.wait_urgent_replies)


async def _import_server() -> None:
    await anyio.to_thread.run_sync(__import__, "sidecar.mcp_server.server")
