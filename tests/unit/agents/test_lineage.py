"""Who belongs to an agent, how such a set is killed, and both readings of the process table."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents import lineage
from sidecar.agents.lineage import Identity, KillRounds, Lineage, MarkerOwner, ProcessTable, ProcTable, Row, Snapshot
from sidecar.agents.portable_table import PortableTable

ROOT, SENTINEL, OWNER = 100, 50, 40
TAG = 77


def row(pid: int, parent: int = 1, session: int = 7, *, markers: tuple[str, ...] = (), tag: int = 0) -> Row:
    return Row(pid, parent, session, float(pid), False, markers, tag)


def agents_lineage(**more: object) -> Lineage:
    known: dict[str, object] = {"root": Identity(ROOT, float(ROOT)), "excluded_pids": frozenset({1, OWNER, SENTINEL})}
    return Lineage("mine", TAG, excluded_sessions=frozenset({OWNER, SENTINEL}), **{**known, **more})  # type: ignore[arg-type]


def members(of: Lineage, *rows: Row) -> set[int]:
    everyone = (row(1, 0, 1), row(OWNER, 1, OWNER), row(SENTINEL, OWNER, SENTINEL), *rows)
    return {found.pid for found in of.members(Snapshot(everyone))}


AGENT = row(ROOT, SENTINEL, ROOT)


@pytest.mark.parametrize(
    "escaped",
    [
        pytest.param([row(101, ROOT, ROOT)], id="child"),
        pytest.param([row(101, ROOT, 101), row(102, 101, 102)], id="grandchild in its own session"),
        pytest.param([row(102, 1, ROOT)], id="orphan in the agent's session"),
        pytest.param([row(102, 1, 101, markers=("other", "mine"))], id="orphan with the marker"),
        pytest.param([row(102, 1, 101, tag=TAG)], id="orphan with the tag only"),
        pytest.param([row(101, ROOT, 101), row(102, 1, 101)], id="orphan in a session that a member made"),
    ],
)
def test_every_trace_leads_back_to_the_agent(escaped: list[Row]) -> None:
    assert members(agents_lineage(), AGENT, *escaped) == {ROOT, *(found.pid for found in escaped)}


def test_excluded_processes_are_never_members() -> None:
    others = [row(200, 1, 200), row(201, SENTINEL, 201, markers=("theirs",), tag=78), row(202, OWNER, OWNER)]
    assert members(agents_lineage(), AGENT, *others) == {ROOT}


def test_a_reused_pid_is_a_stranger_and_so_is_everybody_in_its_session() -> None:
    reused = AGENT._replace(started=999.0, parent=1)
    assert members(agents_lineage(), reused, row(101, ROOT, ROOT)) == set()


def test_before_it_has_a_session_of_its_own_an_agent_does_not_drag_the_sentinels_in() -> None:
    assert members(agents_lineage(), AGENT._replace(session=SENTINEL), row(60, SENTINEL, SENTINEL)) == {ROOT}


def test_who_was_seen_to_belong_belongs_also_after_it_lost_its_traces() -> None:
    of = agents_lineage()
    assert members(of, AGENT, row(101, ROOT, ROOT)) == {ROOT, 101}
    assert members(of, row(101, 1, 101)) == {101}
    assert members(of, row(101, 1, 101)._replace(started=5.0)) == set()


def test_the_dead_are_not_living_but_their_children_are_found() -> None:
    assert members(agents_lineage(), AGENT._replace(zombie=True), row(101, ROOT, 101)) == {101}


def test_everybody_below_a_sub_reaper_can_be_meant() -> None:
    of = Lineage("", 0, ancestor=SENTINEL, excluded_pids=frozenset({SENTINEL}))
    assert members(of, row(300, SENTINEL, 300), row(301, 300, 301), row(400, 1, 400)) == {300, 301}


def test_nobody_is_killed_before_everybody_is_held_still() -> None:
    sent: list[tuple[int, signal.Signals]] = []

    def send(identity: Identity, number: signal.Signals) -> bool:
        sent.append((identity.pid, number))
        return True

    killing = KillRounds(send)
    first, second = Identity(1, 0), Identity(2, 0)
    assert not killing.next_round([first])
    assert not killing.next_round([first, second])
    assert killing.next_round([first, second])
    assert sent == [(1, signal.SIGSTOP), (2, signal.SIGSTOP), (1, signal.SIGKILL), (2, signal.SIGKILL)]


def test_who_forks_faster_than_we_look_is_killed_all_the_same() -> None:
    killing = KillRounds(lambda identity, number: True)
    assert any(killing.next_round([Identity(number, 0)]) for number in range(100))


# --- the process table: a signal reaches the process that was meant or none


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
    row = table.snapshot().rows[child.pid]
    assert (row.parent, row.session, row.zombie) == (os.getpid(), child.pid, False)
    assert row.markers == ("one", "two")
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
    limits = resource.getrlimit(lineage.TAG_LIMIT)
    tag = lineage.new_tag()
    resource.setrlimit(lineage.TAG_LIMIT, (tag, limits[1]))
    try:
        process = subprocess.Popen(
            ["env", "-i", "sh", "-c", "setsid sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE
        )
    finally:
        resource.setrlimit(lineage.TAG_LIMIT, limits)
    with process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        found = table.snapshot()
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
    row = table.snapshot().rows[child.pid]
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


# --- the marks that lead from a process back to its agent and its owner


def test_a_marker_names_its_owner() -> None:
    owner = MarkerOwner(17, 230835.5, "boot:4026")
    assert lineage.owner_in(lineage.new_marker("01ABC", owner)) == owner


@given(st.text())
def test_what_is_no_marker_names_nobody(text: str) -> None:
    owner = lineage.owner_in(text)
    assert owner is None or text.count("/") == 3


@pytest.mark.parametrize(
    ("environ", "markers"),
    [
        (b"SIDECAR_MARKER=a b\0X=1\0", ("a", "b")),
        (b"X=1\0SIDECAR_MARKER=a\0", ("a",)),
        (b"X=SIDECAR_MARKER=a\0", ()),
        (b"NOT_SIDECAR_MARKER=a\0", ()),
        (b"SIDECAR_MARKER=\0", ()),
        (b"", ()),
    ],
)
def test_markers_are_found_where_the_variable_stands_and_nowhere_else(environ: bytes, markers: tuple[str, ...]) -> None:
    assert lineage.markers_in(environ) == markers


def test_an_agent_inside_an_agent_carries_both_markers() -> None:
    inner = lineage.with_marker({"SIDECAR_MARKER": "outer"}, "inner")
    assert lineage.markers_in(f"SIDECAR_MARKER={inner}\0".encode()) == ("outer", "inner")
    assert lineage.with_marker({}, "only") == "only"


def macos(value: bytes, *, told: int = 0) -> SimpleNamespace:
    """The C library of a Mac, as far as this asks it."""

    def sysctlbyname(name: bytes, buffer: ctypes.Array[ctypes.c_char], size: object, *_: object) -> int:
        assert name == b"kern.bootsessionuuid"
        buffer.value = value
        return told

    return SimpleNamespace(sysctlbyname=sysctlbyname)


def test_a_mac_is_asked_for_the_id_of_its_boot_which_no_clock_changes() -> None:
    boot = "5E6FFEBE-0000-4000-8000-0123456789AB"
    assert lineage.boot_session(macos(boot.encode())) == boot


@pytest.mark.parametrize("library", [SimpleNamespace(), macos(b"", told=0), macos(b"x", told=-1)])
def test_where_nobody_knows_the_boot_there_is_no_id_of_it(library: object) -> None:
    assert lineage.boot_session(library) is None


def test_without_proc_a_boot_keeps_its_id_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_proc(path: str, **_: object) -> object:
        raise FileNotFoundError(path)

    booted = iter((1_000_000.0, 1_003_600.0))
    monkeypatch.setattr(lineage, "open", no_proc, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: macos(b"5E6FFEBE-0000-4000-8000-0123456789AB"))
    monkeypatch.setattr(psutil, "boot_time", lambda: next(booted))
    assert lineage.boot_id() == lineage.boot_id()
