"""Handing a run over on the socket of a daemon, with whatever may be at its other end."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from sidecar import layout, sockets
from sidecar.errors import SidecarError
from sidecar.service.owners import StartOptions, accept_delegated, delegate
from tests.kit import eventually

if TYPE_CHECKING:
    from tests.integration.service.conftest import Place

pytestmark = pytest.mark.anyio
QUICK = {"id": "a", "type": "shell_command", "command": "echo $PPID > by"}


async def test_all_that_is_given_arrives_and_a_refusal_comes_back(place: Place) -> None:
    good, bad, worse = (place.run("quick", QUICK) for _ in range(3))
    asked: list[Any] = []

    async def begin(run_id: str, options: StartOptions, *, request: str) -> None:
        asked.append((run_id, options, request))
        if run_id == bad:
            raise SidecarError("it is too late")
        if run_id == worse:
            raise RuntimeError("a defect")

    long, journal = "x" * 1_000_000, place.owner.journal
    async with anyio.create_task_group() as tasks:
        await tasks.start(accept_delegated, str(place.root), begin)
        options = StartOptions(feedback=long, approve=True, answer={"a": [1, "é"]}, with_changes=True)
        await delegate(place.project, journal, good, options)
        with pytest.raises(SidecarError, match="it is too late"):
            await delegate(place.project, journal, bad)
        with pytest.raises(SidecarError, match="RuntimeError"):
            await delegate(place.project, journal, worse)
        tasks.cancel_scope.cancel()
    assert asked[0] == (good, options, journal.run(good).details["request"]["id"])
    assert [run_id for run_id, *_ in asked] == [good, bad, worse]
    assert place.status(good) == "pending"
    assert place.status(bad) == place.status(worse) == "failed"  # nobody executed it, and nobody will
    assert journal.run(bad).reason == "it was not executed: it is too late"


@pytest.mark.parametrize("read_bytes", [1, 65536])
async def test_a_daemon_that_goes_away_before_it_answers_leaves_the_run_to_an_owner_of_its_own(
    place: Place, read_bytes: int
) -> None:
    run_id = place.run("quick", QUICK)

    def accept_and_leave(listening: socket.socket) -> None:
        connected, _ = listening.accept()
        connected.recv(read_bytes)  # with something left unread, the other side gets an error and no end of file
        connected.close()

    with sockets.bind(layout.handover_socket(str(place.root))) as listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, accept_and_leave, listening)
            await delegate(place.project, place.owner.journal, run_id)
    await eventually(lambda: place.status(run_id) == "completed")
