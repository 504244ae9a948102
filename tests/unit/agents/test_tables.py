"""Both readings of the process table agree, and a signal reaches the process that was meant or nobody."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sidecar.agents import marker
from sidecar.agents.portable_table import PortableTable
from sidecar.agents.proc_table import Identity, ProcessTable, ProcTable

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows threads so")
TABLES: list[Callable[[], ProcessTable]] = [PortableTable]
if sys.platform == "linux":
    TABLES.append(ProcTable)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> ProcessTable:
    made: ProcessTable = request.param()
    return made


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "SIDECAR_MARKER": "one two"}
    with subprocess.Popen(
        ["cat", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environment, bufsize=0
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # Until it answers it may be inside its exec still, where the kernel shows neither its command nor its marks.
        process.stdin.write(b"?")
        assert process.stdout.read(1) == b"?"
        yield process
        process.kill()


def test_a_look_finds_a_child_with_parent_session_and_marks(
    table: ProcessTable, child: subprocess.Popen[bytes]
) -> None:
    row = table.look().rows[child.pid]
    assert (row.parent, row.session, row.zombie) == (os.getpid(), child.pid, False)
    assert row.tokens == ("one", "two")
    assert table.program(child.pid) == "cat"
    assert abs(table.epoch_s(row.started) - time.time()) < 60


def test_a_clock_that_is_set_does_not_make_another_process_of_one(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PortableTable()
    before = table.row(child.pid)
    booted = psutil.boot_time()
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: booted + 3600)  # what psutil sees then
    after = table.row(child.pid)
    assert before is not None
    assert after is not None
    assert after.identity == before.identity
    assert abs(table.epoch_s(after.started) - (time.time() + 3600)) < 60


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows other processes' limits")
def test_the_tag_survives_a_fork_an_exec_and_an_empty_environment(table: ProcessTable) -> None:
    limits = resource.getrlimit(marker.TAG_LIMIT)
    tag = marker.new_tag()
    resource.setrlimit(marker.TAG_LIMIT, (tag, limits[1]))
    try:
        process = subprocess.Popen(
            ["env", "-i", "sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE
        )
    finally:
        resource.setrlimit(marker.TAG_LIMIT, limits)
    with process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        found = table.look()
        assert set(found.tags[tag]) == {process.pid, pid}
        for member in (pid, process.pid):
            os.kill(member, signal.SIGKILL)


def test_a_signal_for_somebody_else_with_that_pid_reaches_nobody(
    table: ProcessTable, child: subprocess.Popen[bytes]
) -> None:
    row = table.row(child.pid)
    assert row is not None
    assert not table.send(Identity(child.pid, row.started - 1), signal.SIGKILL)
    assert child.poll() is None
    assert table.send(row.identity, signal.SIGKILL)
    assert child.wait(20) == -signal.SIGKILL
    assert not table.send(row.identity, signal.SIGKILL)
    assert table.row(child.pid) is None


def test_a_zombie_is_told_from_the_living_and_not_signalled(
    table: ProcessTable, child: subprocess.Popen[bytes]
) -> None:
    before = table.row(child.pid)
    assert before is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    row = table.look().rows[child.pid]
    assert row.zombie
    assert row.identity == before.identity
    assert not table.send(row.identity, signal.SIGTERM)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_a_name_with_spaces_and_brackets_does_not_shift_the_fields() -> None:
    code = "open('/proc/self/comm', 'w').write(') Z 1 1 ('); print(flush=True); import time; time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        row = ProcTable().row(process.pid)
        process.kill()
    assert row is not None
    assert (row.parent, row.zombie) == (os.getpid(), False)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize("source", [ProcTable, PortableTable])
def test_a_title_that_a_program_made_of_its_arguments_is_not_its_name(source: type[ProcessTable]) -> None:
    """npm calls itself `npm exec what-it-was-told`."""
    code = "open('/proc/self/comm', 'w').write('npm exec hidden'); print(flush=True); import time; time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        name = source().program(process.pid)
        process.kill()
    assert name == "npm"


def test_what_does_not_exist_is_nobody(table: ProcessTable) -> None:
    nobody = 2**22 + 1
    assert table.row(nobody) is None
    assert table.program(nobody) == ""
    assert table.environ(nobody) == b""
    assert not table.send(Identity(nobody, 1.0), signal.SIGTERM)


def test_a_table_that_cannot_be_read_is_an_error_and_not_an_empty_table(table: ProcessTable) -> None:
    """Without a descriptor left to read with, every process would look as if it were gone."""
    table.row(os.getpid())
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            table.row(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@needs_linux
def test_a_process_whose_first_thread_has_ended_is_not_a_zombie(table: ProcessTable) -> None:
    kit = Path(__file__).parents[2] / "integration" / "agents" / "hostile" / "kit.py"
    command = [sys.executable, "-I", "-S", str(kit), "first_thread_ends", "word"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            deadline = time.monotonic() + 20
            while "\nState:\tZ" not in Path(f"/proc/{process.pid}/status").read_text():
                assert time.monotonic() < deadline
            row = table.row(process.pid)
            assert row is not None
            assert not row.zombie
            assert table.send(row.identity, signal.SIGKILL)
            assert process.wait(20) == -signal.SIGKILL
        finally:
            process.kill()
