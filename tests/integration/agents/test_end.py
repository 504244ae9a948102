"""How supervised commands end: whole, once, whoever asks and whenever."""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import anyio
import psutil
import pytest
from anyio.lowlevel import checkpoint

from sidecar.agents import cgroup
from sidecar.agents.containment import Containment
from sidecar.agents.lineage import ProcTable, Snapshot
from sidecar.agents.sentinel_link import SentinelLink
from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.model.agent import AgentEnded
from tests.kit import alive, eventually

pytestmark = pytest.mark.anyio
PYTHON = [sys.executable, "-I", "-S", "-c"]


def shell(script: str, **more: object) -> Launch:
    return Launch(argv=["sh", "-c", script], cwd="/", **more)  # type: ignore[arg-type]


async def lines_of(agent: Agent) -> list[tuple[str, str]]:
    return [(output.stream, line) async for output in agent.pipes.subscribe() for line in output.lines]


async def first_line(agent: Agent) -> str:
    with anyio.fail_after(120):
        async for output in agent.pipes.subscribe():
            return output.lines[0]
    raise AssertionError("no output")


async def kill_sentinel(supervisor: Supervisor) -> None:
    """It is dead when this returns; nobody here has heard of it yet, or reaped it."""
    sentinel = psutil.Process(supervisor.sentinel_pid)
    sentinel.kill()
    while sentinel.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)  # the loop must not notice first


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_grandchild_that_holds_the_pipe_is_ended_with_the_agent(containment: Containment) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        with anyio.fail_after(120):
            ended = await supervisor.run(shell("setsid sleep 1000 & echo done; exit 4"))
    assert (ended.reason, ended.exit_code, ended.tail, ended.survivors) == ("exited", 4, "done\n", 0)
    assert [process.rung for process in ended.processes] == ["exited", "term"]


async def test_whoever_holds_the_pipe_from_outside_does_not_hold_up_the_end(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    """A descriptor handed to a stranger keeps the pipe open although the tree is empty."""
    agent = await supervisor.start(shell("echo said; read x", keep_stdin_open=True))
    assert await first_line(agent) == "said"
    held = os.open(f"/proc/{agent.pid}/fd/1", os.O_WRONLY)
    try:
        agent.pipes.write_stdin(b"\n")
        with anyio.fail_after(120):
            assert (await agent.wait()).tail == "said\n"
    finally:
        os.close(held)


async def test_the_pid_of_an_agent_is_not_given_away_while_its_tree_lives(containment: Containment) -> None:
    if not hasattr(os, "waitid"):
        pytest.skip("this system reaps at once")
    async with Supervisor("/", containment=containment) as supervisor:
        script = "sh -c 'trap \"\" TERM; echo up; while :; do sleep 1000; done' & read go; exit 0"
        agent = await supervisor.start(shell(script, keep_stdin_open=True, kill_after_s=10))
        assert await first_line(agent) == "up"
        agent.pipes.write_stdin(b"go\n")
        await eventually(lambda: psutil.Process(agent.pid).status() == psutil.STATUS_ZOMBIE)
        assert supervisor.agents
        ended = await agent.end("abort", kill_after_s=0)
    assert (ended.exit_code, ended.survivors) == (0, 0)


async def test_many_ends_at_once_are_one_end(containment: Containment) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        agent = await supervisor.start(shell("echo up; exec sleep 1000"))
        await first_line(agent)
        results: list[AgentEnded] = []

        async def end(reason: str) -> None:
            results.append(await agent.end(reason))  # type: ignore[arg-type]

        async with anyio.create_task_group() as tasks:
            for reason in ("timeout", "abort", "stall"):
                tasks.start_soon(end, reason)
        results.append(await agent.end("shutdown"))
    assert events == [results[0]]
    assert results == [results[0]] * 4
    assert results[0].reason == "timeout"


async def test_an_end_that_is_asked_for_as_the_agent_exits_is_one_end(containment: Containment) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        for _ in range(10):
            agent = await supervisor.start(shell("echo up; exit 0"))
            await first_line(agent)
            assert await agent.end("abort") == await agent.wait()
    assert len(events) == 10
    assert {event.survivors for event in events} == {0}


async def test_a_cancelled_start_leaves_nothing_running(containment: Containment, tmp_path: Path) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        with anyio.fail_after(20, shield=True), anyio.CancelScope() as scope:
            scope.cancel()
            await supervisor.start(shell("exec sleep 1000"))
        assert scope.cancelled_caught
        assert supervisor.agents == {}
    assert [event.reason for event in events] == ["abort"]


async def test_a_cancelled_run_is_an_abort_and_the_tree_is_empty_when_it_returns(containment: Containment) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.run, shell("exec sleep 1000"))
            await eventually(lambda: any(agent.pid for agent in supervisor.agents.values()))
            (agent,) = supervisor.agents.values()
            pid = agent.pid
            tasks.cancel_scope.cancel()
        assert not alive(pid)
    assert [event.reason for event in events] == ["abort"]


async def test_leaving_the_supervisor_ends_every_agent_also_by_an_error(containment: Containment) -> None:
    events: list[AgentEnded] = []
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
            for _ in range(3):
                await supervisor.start(shell("exec sleep 1000"))
            sentinel = supervisor.sentinel_pid
            raise LookupError("something else broke")
    assert caught.group_contains(LookupError)
    assert [event.reason for event in events] == ["shutdown"] * 3
    assert not psutil.pid_exists(sentinel)


async def test_the_agents_own_way_comes_first_then_the_end_of_its_input(supervisor: Supervisor) -> None:
    async def interrupt(agent: Agent) -> None:
        agent.pipes.write_stdin(b"interrupt\n")

    script = "trap '' TERM; echo up; read word; echo got $word; read more || echo end of input"
    agent = await supervisor.start(shell(script, keep_stdin_open=True, interrupt=interrupt))
    assert await first_line(agent) == "up"
    ended = await agent.end("stage_gate")
    assert ended.tail == "up\ngot interrupt\nend of input\n"
    assert (ended.rung, ended.exit_code) == ("stdin", 0)


async def test_an_interrupt_that_fails_or_hangs_only_costs_its_time(supervisor: Supervisor) -> None:
    async def fails(agent: Agent) -> None:
        raise OSError("no such control channel")

    async def hangs(agent: Agent) -> None:
        await anyio.sleep_forever()

    for interrupt in (fails, hangs):
        agent = await supervisor.start(shell("exec sleep 1000", interrupt=interrupt, kill_after_s=2))
        with anyio.fail_after(120):
            assert (await agent.end("abort")).rung == "term"


async def test_a_second_more_urgent_request_brings_the_kill_forward(supervisor: Supervisor) -> None:
    agent = await supervisor.start(shell("trap '' TERM; echo up; while :; do sleep 1000; done", kill_after_s=600))
    assert await first_line(agent) == "up"
    agent.request_end("abort")
    agent.request_end("abort", kill_after_s=0)
    try:
        with anyio.fail_after(120):
            assert (await agent.wait()).rung == "kill"
    finally:
        for process in psutil.Process(supervisor.sentinel_pid).children(recursive=True):
            process.kill()


async def test_an_abort_does_not_put_off_the_kill_of_what_an_exited_agent_left(supervisor: Supervisor) -> None:
    script = "sh -c 'trap \"\" TERM; echo up; while :; do sleep 1000; done' & read go; exit 0"
    agent = await supervisor.start(shell(script, keep_stdin_open=True, kill_after_s=0.5))
    assert await first_line(agent) == "up"
    agent.pipes.write_stdin(b"go\n")
    await eventually(lambda: not alive(agent.pid))
    await eventually(lambda: agent.kill_at < math.inf)
    agent.request_end("abort", kill_after_s=600)
    try:
        with anyio.fail_after(120):
            ended = await agent.wait()
        assert (ended.reason, ended.rung, ended.survivors) == ("exited", "kill", 0)
    finally:
        for process in psutil.Process(supervisor.sentinel_pid).children(recursive=True):
            process.kill()


async def test_a_slow_look_at_a_crowded_machine_is_not_taken_out_of_the_agents_grace(containment: Containment) -> None:
    grace_s = 0.3

    supervisor = Supervisor("/", containment=containment)
    read = supervisor.shared.table.snapshot

    def read_slowly() -> Snapshot:
        """The real table, read as slowly as one of many thousand processes is."""
        found = read()
        time.sleep(2 * grace_s)
        return found

    supervisor.shared.table.snapshot = read_slowly  # type: ignore[method-assign]
    async with supervisor:
        agent = await supervisor.start(shell("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done"))
        assert await first_line(agent) == "up"
        ended = await agent.end("abort", kill_after_s=grace_s)
    root = ended.processes[0]
    assert (root.pid, root.rung, ended.exit_code) == (agent.pid, "term", 3)
    assert ended.tail.endswith("bye\n")


async def test_who_is_born_while_the_table_is_read_is_found(tmp_path: Path) -> None:
    """The pids are listed, then the agent leaves a daemon behind and goes, then the listed ones are read."""
    fifo = tmp_path / "go"
    os.mkfifo(fifo)

    class InTheMidst(ProcTable):
        def snapshot(self) -> Snapshot:
            listed = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
            if fifo.exists():
                fifo.write_text("")  # waits for its reader, the handler of SIGTERM
                fifo.unlink()
                while alive(agent.pid):
                    time.sleep(0.001)
            return Snapshot(row for row in map(self.row, listed) if row is not None)

    supervisor = Supervisor("/", containment="reaper")
    async with supervisor:
        script = f"trap 'cat {fifo}; setsid sleep 1000 & exit' TERM; echo up; while :; do sleep 0.01; done"
        agent = await supervisor.start(shell(script))
        assert await first_line(agent) == "up"
        supervisor.shared.table = InTheMidst()
        ended = await agent.end("abort")
        children = psutil.Process(supervisor.sentinel_pid).children()
        assert [child for child in children if child.status() != psutil.STATUS_ZOMBIE] == []  # the dead are reaped soon
    assert len(ended.processes) > 1


async def test_an_agent_that_cannot_be_ended_does_not_hold_up_the_sentinel(containment: Containment) -> None:
    """Released although it lives, as one is that the ladder could not end: the next one starts all the same."""
    link = SentinelLink(containment, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    await link.open()
    try:
        for marker in ("first", "second"):
            null = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
            request = {"argv": ["sleep", "1000"], "cwd": "/", "env": {}, "marker": marker, "tag": 0, "group": None}
            started = anyio.Event()
            number = link.start(request, null, lambda message, heard=started: heard.set())  # type: ignore[misc]
            with anyio.fail_after(120):
                await started.wait()
            link.release(number)
    finally:
        with anyio.fail_after(120):
            await link.close()


async def test_a_killed_sentinel_is_replaced_and_its_agents_are_ended_by_the_owner(containment: Containment) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        agent = await supervisor.start(shell("(setsid sleep 1000 &); echo up; exec sleep 1000"))
        await first_line(agent)
        children = [child.pid for child in psutil.Process(agent.pid).children()]
        killed = supervisor.sentinel_pid
        await kill_sentinel(supervisor)
        # Meanwhile others start: all of them under the same new one.
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(supervisor.run, shell("ps -o ppid= -p $$"))
        with anyio.fail_after(120):
            ended = await agent.wait()
        assert not psutil.pid_exists(killed)  # nor is its zombie left
    assert (ended.reason, ended.exit_code, ended.survivors) == ("internal_error", None, 0)
    assert ended.problem == "the sentinel that started it was killed"
    assert [pid for pid in (agent.pid, *children) if alive(pid)] == []
    others = [event for event in events if event is not ended]
    assert {(event.reason, event.exit_code) for event in others} == {("exited", 0)}
    assert {int(event.tail) for event in others} == {supervisor.sentinel_pid}
    assert supervisor.sentinel_pid != killed


async def test_what_runs_under_a_new_sentinel_is_guarded_and_limited_as_before(containment: Containment) -> None:
    events: list[AgentEnded] = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, limits[1]))
    try:
        async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
            for _ in range(3):
                await supervisor.run(shell("ulimit -n; (setsid sleep 1000 &); exit 0"))
                await kill_sentinel(supervisor)
                assert supervisor.agents == {}
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 4000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [event.tail for event in events] == ["4000\n"] * 3
    assert [(event.reason, len(event.processes), event.survivors) for event in events] == [("exited", 2, 0)] * 3


async def test_a_start_that_is_cancelled_while_the_sentinel_is_replaced_leaves_none(containment: Containment) -> None:
    others = psutil.Process().children()  # of other tests
    async with Supervisor("/", containment=containment) as supervisor:
        before = descriptors()
        await kill_sentinel(supervisor)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.start, shell("exit 0"))
            while supervisor.sentinel_pid:
                await checkpoint()
            tasks.cancel_scope.cancel()
        assert psutil.Process().children() == others
        assert (await supervisor.run(shell("exit 0"))).reason == "exited"
        assert descriptors() == before


async def test_no_lock_and_no_pipe_of_the_owner_is_inherited(supervisor: Supervisor, tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    agent = await supervisor.start(shell("ls -l /proc/self/fd | grep -c -e lock -e socket; exec sleep 1000"))
    assert await first_line(agent) == "0"
    os.close(lock)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


async def test_agents_hear_signals_that_the_sentinel_is_deaf_to(supervisor: Supervisor) -> None:
    agent = await supervisor.start(Launch(argv=["sh", "-c", "grep SigIgn /proc/self/status"], cwd="/"))
    ignored = int((await first_line(agent)).split()[1], 16)
    # The C library keeps two signals to itself, and may hand them on ignored when it starts a process.
    assert [number for number in signal.valid_signals() if ignored >> (number - 1) & 1] == []


async def test_an_agent_costs_no_thread_and_gives_every_descriptor_back(containment: Containment) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        await supervisor.run(shell("exit 0", stdin=b"x"))
        before = descriptors()
        agents = [await supervisor.start(shell("cat; exec sleep 1000", stdin=b"x" * 200_000)) for _ in range(20)]
        assert threading.active_count() == 1
        for agent in agents:
            agent.request_end("abort")
        for agent in agents:
            await agent.wait()
        assert descriptors() == before
        children = psutil.Process(supervisor.sentinel_pid).children
        await eventually(lambda: children() == [])  # no zombie is left either


async def test_a_hundred_agents_ended_at_once_share_their_looks_at_the_process_table(
    containment: Containment,
) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        agents = [await supervisor.start(shell("exec sleep 1000")) for _ in range(100)]
        before = supervisor.shared.snapshots
        for agent in agents:
            agent.request_end("abort")
        ends = [await agent.wait() for agent in agents]
        assert {ended.survivors for ended in ends} == {0}
        assert supervisor.shared.snapshots - before < 25


async def test_a_group_that_an_agent_made_below_its_own_is_emptied_and_removed() -> None:
    if reason := cgroup.why_not():
        pytest.skip(reason)
    async with Supervisor("/", containment="cgroup") as supervisor:
        script = f"""
            inner={supervisor.containment.base}/$(sed -n 's|^0::.*/||p' /proc/self/cgroup)/inner
            mkdir $inner
            echo 0 > $inner/cgroup.procs
            trap "" TERM
            echo up
            while :; do sleep 1000; done
        """
        agent = await supervisor.start(shell(script, kill_after_s=0.2))
        assert await first_line(agent) == "up"
        ended = await agent.end("abort")
        assert ended.survivors == 0
        assert agent.record.group is not None
        assert not os.path.exists(agent.record.group)  # noqa: ASYNC240
