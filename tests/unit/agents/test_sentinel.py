"""Messages and descriptors arrive whole and in order, however the bytes are cut; the sentinel imports little."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sidecar
from sidecar.agents.sentinel import Inbox, pack


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    right.setblocking(False)
    with left, right:
        yield left, right


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers(), max_size=3), max_size=5), st.integers(1, 50))
def test_messages_come_out_as_they_went_in(messages: list[dict[str, object]], size: int) -> None:
    left, right = socket.socketpair()
    with left, right:
        right.setblocking(False)
        inbox = Inbox(right)
        data = b"".join(map(pack, messages))
        received = []
        for start in range(0, len(data), size):
            left.sendall(data[start : start + size])
            received += inbox.receive() or []
        assert received == messages


def test_each_message_takes_its_own_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    left, right = ends
    inbox = Inbox(right)
    pipes = [os.pipe() for _ in range(3)]
    for read, write in pipes:
        socket.send_fds(left, [pack({"write": write})], [write])
        os.close(write)
        assert read
    messages: list[dict[str, object]] = []
    while len(messages) < 3:
        messages += inbox.receive() or []
    for (read, _), _ in zip(pipes, messages, strict=True):
        (received,) = inbox.take(1)
        os.write(received, b"mine")
        os.close(received)
        assert os.read(read, 10) == b"mine"
        os.close(read)


def test_nothing_yet_is_no_message_and_a_closed_end_is_none(ends: tuple[socket.socket, socket.socket]) -> None:
    left, right = ends
    inbox = Inbox(right)
    assert inbox.receive() == []
    left.close()
    assert inbox.receive() is None


def test_text_that_is_not_utf8_survives(ends: tuple[socket.socket, socket.socket]) -> None:
    left, right = ends
    left.sendall(pack({"argv": [os.fsdecode(b"\xff\x00\xfe")]}))
    assert Inbox(right).receive() == [{"argv": [os.fsdecode(b"\xff\x00\xfe")]}]


def test_the_sentinel_imports_little_and_nothing_that_is_installed() -> None:
    program = (
        "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); import sidecar.agents.sentinel; "
        "print(*(name for name in set(sys.modules) - before if name.partition('.')[0] not in sys.stdlib_module_names))"
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(str(sidecar.__file__))))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program, root], capture_output=True, text=True, check=True)
    agents = {f"sidecar.agents.{name}" for name in ("sentinel", "cgroup", "lineage")}
    assert set(done.stdout.split()) == {"sidecar", "sidecar.agents", *agents}
