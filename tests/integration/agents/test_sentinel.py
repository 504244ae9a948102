"""A sentinel ends its agents when its owner is gone, also where a forked copy of the owner keeps their socket open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from sidecar.agents.lineage import Identity
from sidecar.agents.portable_table import PortableTable
from tests.kit import DEADLINE_S

# An owner with one agent, and a copy of itself that outlives it. `without`: what Python does not have, as on a Mac.
OWNER = r"""
import os, socket, subprocess, sys, time
from sidecar.agents.sentinel import Inbox, pack

mine, other = socket.socketpair()
without = sys.argv[1]
boot = f"import os\nif {without!r}: delattr(os, {without!r})\n"
boot += f"from sidecar.agents.sentinel import main\nmain({other.fileno()}, 'sweep', '', 256)"
subprocess.Popen([sys.executable, "-c", boot], pass_fds=[other.fileno()], start_new_session=True)
other.close()
inbox, received = Inbox(mine), []
while not received:
    received += inbox.receive()
null = os.open(os.devnull, os.O_RDWR)
request = {"type": "start", "id": 1, "argv": ["sleep", "1000"], "cwd": "/", "env": dict(os.environ), "group": None}
data = pack({**request, "marker": "AGENT/0/0/nowhere", "tag": 0})
socket.send_fds(mine, [data], [null, null, null])
while len(received) < 2:
    received += inbox.receive()
copy = os.fork()
if copy:
    print(received[0]["pid"], received[1]["pid"], copy, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("without", ["", "pidfd_open"], ids=["with pidfds", "without pidfds"])
def test_agents_die_with_their_owner_though_a_copy_of_it_lives(without: str) -> None:
    if without and not hasattr(os, without):
        without = ""
    table = PortableTable()
    with subprocess.Popen([sys.executable, "-c", OWNER, without], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        sentinel, agent, copy = map(int, owner.stdout.readline().split())
        row = table.row(agent)
        assert row is not None
        try:
            owner.kill()
            deadline = time.monotonic() + DEADLINE_S
            while _lives(table, row.identity):
                assert time.monotonic() < deadline, "the agent outlived its owner"
                time.sleep(0.02)
            assert psutil.pid_exists(copy)
        finally:
            for pid in (copy, agent, sentinel):
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)


def _lives(table: PortableTable, identity: Identity) -> bool:
    row = table.row(identity.pid)
    return row is not None and not row.zombie and row.identity == identity
