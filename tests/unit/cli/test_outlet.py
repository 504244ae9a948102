"""Output that holds up nobody."""

from __future__ import annotations

import os

from sidecar.cli.foreground import OutputWriter


def test_a_full_pipe_holds_up_nobody_and_one_without_a_reader_loses_what_is_written() -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    try:
        outlet = OutputWriter()
        for _ in range(200):
            outlet.write("x" * 1000 + "\n")  # more than a pipe holds; a write that waits would wait for ever
        assert not outlet.lost
        os.close(read)
        outlet.close()
        assert outlet.lost
    finally:
        os.dup2(kept, 1)
        os.close(kept)
