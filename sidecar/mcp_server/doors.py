"""Where the server is reached: at the socket of the project's daemon, and at the socket of each run."""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from sidecar import layout
from sidecar.errors import SidecarError
from sidecar.mcp_server import transport_unix
from sidecar.service.owners import LocalRuns
from sidecar.sockets import Listener

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from sidecar.config import Project
    from sidecar.mcp_server.server import McpServer
    from sidecar.service.driving import Driving
    from sidecar.service.owners import Owner, RunEndpoint, ServerDriven


def owning(project: Project, owner: Owner) -> LocalRuns:
    """For a process that executes a run itself: its agents find an endpoint. Runs that they start are given away."""
    runs = LocalRuns(owner)

    def cases() -> Driving:
        from sidecar.service.driving import Driving  # noqa: PLC0415
        from sidecar.service.owners import DetachedExecutor  # noqa: PLC0415 - most agents never call

        return Driving(project, owner, DetachedExecutor(project, owner.journal, runs), on_event=owner.emit)

    runs.endpoint = _of_runs(cases, runs)
    return runs


def _of_runs(cases: Callable[[], Driving], runs: LocalRuns) -> RunEndpoint:
    """The doors of runs: each is bound at once. The server behind it is made when somebody knocks."""

    def endpoint(execution: ServerDriven) -> AbstractAsyncContextManager[None]:
        return _run_endpoint(execution.run_id, cases, runs)

    return endpoint


@asynccontextmanager
async def of_daemon(
    use_cases: Driving,
    runs: LocalRuns,
    *,
    http: tuple[str, int] | None = None,
    pages: Mapping[str, Callable[[], str | None]] | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[None]:
    """The daemon's door, and those of its runs; `http`: host and port of another, and `pages` to be read there. `told`
    hears where that is."""
    root = use_cases.project.root
    await _load()
    from sidecar.mcp_server.calls import Site  # noqa: PLC0415
    from sidecar.mcp_server.server import serving  # noqa: PLC0415 - after `_load`, which costs nobody a turn

    runs.endpoint = _of_runs(lambda: use_cases, runs)
    async with serving(Site(use_cases, root)) as server, anyio.create_task_group() as tasks:
        with _known(server, runs):
            await tasks.start(transport_unix.listen, layout.daemon_socket(root), server.serve)
            if http is not None:
                from sidecar.mcp_server import transport_http  # noqa: PLC0415 - a web server, for the few who want one

                token = use_cases.project.settings.http_token
                port = await tasks.start(transport_http.listen, server, *http, token, pages)
                host = f"[{http[0]}]" if ":" in http[0] else http[0]
                told(f"MCP at http://{host}:{port}{transport_http.PATH}")
                if token is None:
                    told(
                        "every user of this machine can call that, and run workflows as you; http_token keeps them out"
                    )
            try:
                yield
                # The runs are over by now, and who called for one has not read yet how it ended.
                await server.results_out()
            finally:
                tasks.cancel_scope.cancel()


@asynccontextmanager
async def _run_endpoint(run_id: str, cases: Callable[[], Driving], runs: LocalRuns) -> AsyncIterator[None]:
    with ExitStack() as stack:
        try:
            listening = stack.enter_context(Listener(layout.run_socket(runs.owner.root, run_id)))
        except SidecarError as error:  # the run can do without
            runs.owner.report(f"the agents of run {run_id} cannot call back: {error}")
            yield
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_serve_run, listening, run_id, cases, runs)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()


async def _serve_run(listening: socket.socket, run_id: str, cases: Callable[[], Driving], runs: LocalRuns) -> None:
    await anyio.wait_readable(listening)
    await _load()
    from sidecar.mcp_server.calls import Site  # noqa: PLC0415
    from sidecar.mcp_server.server import serving  # noqa: PLC0415 - most runs have agents that never call

    async with serving(Site(cases(), runs.owner.root, run_id)) as server:
        with _known(server, runs):
            await transport_unix.accept(listening, server.serve)


@contextmanager
def _known(server: McpServer, runs: LocalRuns) -> Iterator[None]:
    """The server hears of every run, and runs wait for its answers before they end an agent."""
    runs.listeners.add(server.on_event)
    runs.replies.add(server.replies_out)
    try:
        yield
    finally:
        runs.listeners.discard(server.on_event)
        runs.replies.discard(server.replies_out)


async def _load() -> None:
    """Import the SDK, which takes a second, without holding up the loop: an abort must not wait for it."""
    await anyio.to_thread.run_sync(__import__, "sidecar.mcp_server.server")
