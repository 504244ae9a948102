"""The inotify source hints about wanted names and about the directory itself, and about nothing else."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.signals.inotify import Inotify

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def source() -> Iterator[Inotify]:
    source = Inotify()
    source.names[b".stop"] += 1
    yield source
    source.close()


def drained(source: Inotify) -> set[tuple[str, bytes]]:
    """Everything there is by now. The kernel queues an event before the call that caused it returns."""
    hints: set[tuple[str, bytes]] = set()
    while select.select([source], [], [], 0)[0]:
        more = source.drain()
        assert more is not None
        hints |= more
    return hints


def test_names_that_nobody_wants_give_no_hint(source: Inotify, tmp_path: Path) -> None:
    source.arm(str(tmp_path))
    for name in ("a", ".stopped", ".sto", "x.stop"):
        (tmp_path / name).touch()
    assert drained(source) == set()
    (tmp_path / ".stop").touch()
    assert drained(source) == {(str(tmp_path), b".stop")}


def test_reading_a_wanted_file_gives_no_hint(source: Inotify, tmp_path: Path) -> None:
    (tmp_path / ".stop").touch()
    source.arm(str(tmp_path))
    (tmp_path / ".stop").read_bytes()
    os.listdir(tmp_path)
    assert not select.select([source], [], [], 0)[0]


def test_events_of_a_watch_that_is_gone_do_not_reach_its_successor(source: Inotify, tmp_path: Path) -> None:
    directory = tmp_path / "ws"
    directory.mkdir()
    source.arm(str(directory))
    directory.rmdir()
    directory.mkdir()
    source.arm(str(directory))
    assert drained(source) == set()
    (directory / ".stop").touch()
    assert drained(source) == {(str(directory), b".stop")}


def test_a_directory_that_is_none_cannot_be_armed(source: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        source.arm(str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError):
        source.arm(str(tmp_path / "missing"))


def test_closing_twice_closes_nobody_elses_descriptor() -> None:
    source = Inotify()
    source.close()
    reader, writer = os.pipe()
    source.close()
    os.write(writer, b"!")
    assert os.read(reader, 1) == b"!"
    os.close(reader)
    os.close(writer)
