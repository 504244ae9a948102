"""Output that holds up nobody."""

from __future__ import annotations

import os
import time

import pytest

from sidecar.cli.outlet import Outlet


@pytest.fixture
def output(capfd: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    return capfd


def test_everything_is_written_in_order_before_it_is_closed(output: pytest.CaptureFixture[str]) -> None:
    outlet = Outlet()
    for number in range(2000):
        outlet.write(f"{number}\n")
    outlet.remark("a remark")
    outlet.close()
    out, err = output.readouterr()
    assert out.split() == [str(number) for number in range(2000)]
    assert err == "sidecar: a remark\n"
    assert not outlet.lost


def test_a_full_pipe_holds_up_nobody_and_one_without_a_reader_loses_what_is_written() -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    try:
        outlet = Outlet()
        for _ in range(200):
            outlet.write("x" * 1000 + "\n")  # more than a pipe holds; a write that waits would wait for ever
        assert not outlet.lost
        os.close(read)
        outlet.close()
        assert outlet.lost
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@pytest.mark.anyio
async def test_whoever_waits_until_it_is_shown_does_not_wait_for_ever() -> None:
    read, write = os.pipe()
    kept = os.dup(1)
    os.dup2(write, 1)
    os.close(write)
    try:
        outlet = Outlet()
        outlet.write("now\n")
        await outlet.shown()
        assert os.read(read, 100) == b"now\n"
        for _ in range(200):
            outlet.write("x" * 1000 + "\n")
        began = time.monotonic()
        await outlet.shown()
        assert time.monotonic() - began < 60
        os.close(read)
        outlet.close()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
