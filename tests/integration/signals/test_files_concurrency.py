"""Many writers, readers and clearers at one signal at the same time: never a part of one, never one lost."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from sidecar.signals import files
from sidecar.signals.files import Trailers, new_trailers

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sys
from sidecar.signals import files
from sidecar.signals.files import Trailers

directory, letter, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
for number in range(rounds):
    length = 1 + 7919 * number % 50_000
    files.write(directory, "abort", letter * length, Trailers(signal_id=f"{letter}-{length}"))
"""


def test_a_reader_never_sees_a_part_of_a_signal_while_many_writers_replace_it(tmp_path: Path) -> None:
    directory = str(tmp_path)
    files.write(directory, "abort", "Z", Trailers(signal_id="Z-1"))
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, directory, letter, "120"]) for letter in "ABCD"]
    seen: set[str] = set()
    try:
        while any(writer.poll() is None for writer in writers):
            signal = files.read(directory, "abort")
            assert signal is not None, "a signal that is replaced is never absent"
            letter, _, length = signal.signal_id.partition("-")
            assert signal.reason == letter * int(length)
            seen.add(signal.signal_id)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0] * 4
    assert len(seen) > 4, "the reader saw too little of the race to have tested it"
    assert os.listdir(directory) == [".abort"]


@pytest.mark.parametrize("owners", [2, 4])
def test_owners_that_clear_the_same_signal_at_once_are_all_told_that_it_is_gone(tmp_path: Path, owners: int) -> None:
    directory = str(tmp_path)
    with ThreadPoolExecutor(owners) as pool:
        for _ in range(40):
            files.write(directory, "stop", "why", new_trailers())
            signals = [files.read(directory, "stop") for _ in range(owners)]
            assert None not in signals
            assert list(pool.map(files.clear, [signal for signal in signals if signal])) == [True] * owners
            assert os.listdir(directory) == []


def test_a_signal_written_while_several_owners_clear_the_former_one_always_stands_afterwards(tmp_path: Path) -> None:
    directory = str(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        for number in range(150):
            files.write(directory, "stop", "old", new_trailers())
            old = files.read(directory, "stop")
            assert old is not None
            clears = [pool.submit(files.clear, old) for _ in range(2)]
            recovery = pool.submit(files.recover, directory)
            files.write(directory, "stop", "new", Trailers(signal_id=f"new-{number}"))
            for clearing in clears:
                clearing.result()
            recovery.result()
            standing = files.read(directory, "stop")
            assert standing is not None
            assert standing.signal_id == f"new-{number}"
            assert os.listdir(directory) == [".stop"]
            files.clear(standing)


def test_a_writer_between_an_owners_look_and_its_clear_is_not_lost(tmp_path: Path) -> None:
    directory = str(tmp_path)
    files.write(directory, "stop", "old", new_trailers())
    looked_at = files.read(directory, "stop")
    assert looked_at is not None
    subprocess.run([sys.executable, "-c", WRITER.replace("abort", "stop"), directory, "N", "1"], check=True)
    assert not files.clear(looked_at)
    standing = files.read(directory, "stop")
    assert standing is not None
    assert standing.signal_id == "N-1"
