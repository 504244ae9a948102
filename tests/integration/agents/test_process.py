"""Real commands under supervision: what goes in and what comes out."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from sidecar.agents import cgroup, output
from sidecar.agents.containment import Containment
from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.errors import AgentFailed
from sidecar.model.agent import AgentEnded

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


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def peak_kb(*, afresh: bool = False) -> int:
    """The most memory that this process had; `afresh`: counted from now on, so that no earlier peak hides a new one."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if afresh:
        Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


async def test_output_of_both_streams_reaches_the_listener_the_tail_and_the_log(
    containment: Containment, tmp_path: Path
) -> None:
    log = tmp_path / "agents" / "1.log"
    async with Supervisor(str(tmp_path), containment=containment) as supervisor:
        agent = await supervisor.start(shell("echo out; echo err >&2; printf unfinished", log_path=str(log)))
        with anyio.fail_after(120):
            seen = await lines_of(agent)
            ended = await agent.wait()
    assert sorted(seen) == [("stderr", "err"), ("stdout", "out"), ("stdout", "unfinished")]
    assert sorted(log.read_text()) == sorted("out\nunfinishederr\n")
    assert log.stat().st_mode & 0o777 == 0o600
    assert ended.tail.encode() == log.read_bytes()
    assert (ended.reason, ended.exit_code, ended.rung, ended.survivors) == ("exited", 0, "exited", 0)
    assert [process.pid for process in ended.processes] == [agent.pid]


async def test_the_exit_code_is_the_commands_own_and_negative_for_a_signal(containment: Containment) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        assert (await supervisor.run(shell("exit 7"))).exit_code == 7
        assert (await supervisor.run(shell("kill -9 $$"))).exit_code == -signal.SIGKILL


async def test_the_environment_is_the_starters_then_the_steps_then_ours(supervisor: Supervisor) -> None:
    launch = Launch(
        argv=[*PYTHON, "import os; print('\\n'.join(f'{k}={v}' for k, v in os.environ.items()))"],
        cwd="/",
        starter_env={"A": "starter", "B": "starter", "SIDECAR_TASK_ID": "outer", "SIDECAR_MARKER": "outer/1/2/w"},
        env={"B": "step", "SIDECAR_PROJECT": "elsewhere"},
        run_id="RUN",
    )
    agent = await supervisor.start(launch)
    seen = dict(line.split("=", 1) for _, line in await lines_of(agent) if "=" in line)
    assert seen["A"] == "starter"
    assert seen["B"] == "step"
    assert seen["SIDECAR_PROJECT"] == supervisor.project
    assert seen["SIDECAR_RUN_ID"] == "RUN"
    assert "SIDECAR_TASK_ID" not in seen
    assert seen["SIDECAR_MARKER"].split() == ["outer/1/2/w", agent.record.marker]


async def test_arguments_and_variables_that_are_not_utf8_arrive_as_they_were(supervisor: Supervisor) -> None:
    raw = b"\xff\xfe odd"
    odd = os.fsdecode(raw)
    code = "import os, sys; print(os.fsencode(sys.argv[1]).hex(), os.fsencode(os.environ['ODD']).hex())"
    agent = await supervisor.start(Launch(argv=[*PYTHON, code, odd], cwd="/", env={"ODD": odd}))
    assert await first_line(agent) == f"{raw.hex()} {raw.hex()}"


async def test_stdin_is_given_whole_and_then_closed(supervisor: Supervisor) -> None:
    data = os.urandom(3_000_000)
    agent = await supervisor.start(
        Launch(argv=["sh", "-c", "sha256sum | cut -c1-64"], cwd="/", stdin=data, log_path=None)
    )
    expected = subprocess.run(["sha256sum"], input=data, capture_output=True, check=True).stdout[:64].decode()
    assert await first_line(agent) == expected


async def test_without_input_stdin_is_empty(supervisor: Supervisor) -> None:
    with anyio.fail_after(120):
        assert (await supervisor.run(shell("cat; echo over"))).tail == "over\n"


async def test_a_child_that_never_reads_its_stdin_wedges_nobody(supervisor: Supervisor) -> None:
    agent = await supervisor.start(shell("echo up; exec sleep 1000", stdin=b"x" * 5_000_000))
    assert await first_line(agent) == "up"
    with anyio.fail_after(120):
        assert (await agent.end("abort")).survivors == 0


async def test_a_child_that_leaves_without_reading_its_stdin_is_just_over(supervisor: Supervisor) -> None:
    with anyio.fail_after(120):
        assert (await supervisor.run(shell("exit 0", stdin=b"x" * 5_000_000))).exit_code == 0


async def test_stdin_can_be_kept_open_and_written_to(supervisor: Supervisor) -> None:
    agent = await supervisor.start(shell("read a; read b; echo $a-$b", stdin=b"one\n", keep_stdin_open=True))
    assert agent.pipes.write_stdin(b"two\n")
    assert await first_line(agent) == "one-two"
    await agent.wait()
    assert not agent.pipes.write_stdin(b"three\n")


async def test_a_missing_program_and_a_missing_directory_are_named(containment: Containment) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        with pytest.raises(AgentFailed, match=r"no-such-program.*No such file") as failed:
            await supervisor.start(Launch(argv=["no-such-program"], cwd="/"))
        with pytest.raises(AgentFailed, match="working directory /no/such/place"):
            await supervisor.start(Launch(argv=["true"], cwd="/no/such/place"))
        with pytest.raises(AgentFailed, match=r"/dev/null"):
            await supervisor.start(Launch(argv=["true"], cwd="/", log_path="/dev/null/1.log"))
        assert (await supervisor.run(shell("exit 0"))).exit_code == 0
        assert len(events) == 1
    if containment.base is not None:
        agent_id = str(failed.value).split()[1].rstrip(":")
        assert cgroup.PREFIX + agent_id not in os.listdir(containment.base)


async def test_the_sentinel_survives_whatever_a_start_raises(containment: Containment) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        other = await supervisor.start(shell("read -r _", keep_stdin_open=True))
        sentinel = supervisor.sentinel_pid
        for environment in ({"A=B": "c"}, {"A": "b\0c"}, {"A": "\ud800"}):  # an inherited one is not looked at before
            with pytest.raises(AgentFailed, match=r"cannot run 'true': (ValueError|UnicodeEncodeError)"):
                await supervisor.start(Launch(argv=["true"], cwd="/", starter_env=environment))
        assert supervisor.sentinel_pid == sentinel
        other.pipes.write_stdin(b"\n")
        ended = await other.wait()
        assert (ended.reason, ended.exit_code) == ("exited", 0)


async def test_one_line_of_100_mb_costs_no_memory_and_the_log_has_its_end(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    size = 100_000_000
    before_kb = peak_kb(afresh=True)
    code = f"import os\nfor _ in range({size} // 100_000): os.write(1, b'x' * 100_000)\nos.write(1, b'\\nend\\n')"
    agent = await supervisor.start(Launch(argv=[*PYTHON, code], cwd="/", log_path=str(tmp_path / "log")))
    with anyio.fail_after(120):
        lines = await lines_of(agent)
        ended = await agent.wait()
    assert [len(line) for _, line in lines] == [1 << 20, 3]
    assert (tmp_path / "log").read_bytes().endswith(b"x\nend\n")
    assert ended.tail.endswith("x\nend\n")
    assert peak_kb() - before_kb < 30_000


async def test_a_gigabyte_of_output_costs_neither_memory_nor_disk_although_nobody_listens(
    supervisor: Supervisor, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    size = 1_000_000_000 if request.config.getoption("--long") else 50_000_000
    before_kb = peak_kb(afresh=True)
    script = f"yes 'a line that says nothing, again and again' | head -c {size}; echo the last of them"
    log = tmp_path / "logs" / "1.log"
    agent = await supervisor.start(shell(script, log_path=str(log), secrets=["never seen"]))
    agent.pipes.subscribe()
    with anyio.fail_after(120):
        ended = await agent.wait()
    assert (ended.exit_code, ended.problem) == (0, None)
    assert sum(one.stat().st_size for one in log.parent.iterdir()) < 2.1 * output.MOST_BYTES
    assert log.read_bytes().endswith(b"the last of them\n")
    # What a listener is owed: 4 MiB of the stream, which as separate lines take about three times that.
    assert peak_kb() - before_kb < 60_000


async def test_bytes_that_are_not_utf8_are_replaced_for_listeners_and_kept_in_the_log(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    agent = await supervisor.start(shell(r"printf 'a\377b\303\n'; printf '\303\244\n'", log_path=str(log)))
    assert [line for _, line in await lines_of(agent)] == ["a\ufffdb\ufffd", "ä"]
    assert log.read_bytes() == b"a\xffb\xc3\n\xc3\xa4\n"


async def test_a_listener_that_never_reads_holds_up_nobody_and_learns_what_it_lost(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    agent = await supervisor.start(shell("seq 1 300000", log_path=str(log)))
    slow = agent.pipes.subscribe(capacity_bytes=100_000)
    with anyio.fail_after(120):
        ended = await agent.wait()
    received = [(output.dropped, len(output.lines)) async for output in slow]
    assert ended.exit_code == 0
    assert received[0][0] > 0
    assert sum(lost + got for lost, got in received) == 300_000
    assert log.read_bytes().count(b"\n") == 300_000


async def test_secrets_are_masked_in_log_lines_tail_and_process_list(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        'printf "a tok"; sleep 0.05; printf "en-123\n"; printf \'{"k": "to\\\\"ken"}\n\'; exec sleep 1000 # token-123'
    )
    launch = shell(script, log_path=str(log), secrets=["token-123", 'to"ken', ""])
    agent = await supervisor.start(launch)
    listening = agent.pipes.subscribe()
    seen: list[str] = []
    with anyio.fail_after(120):
        async for output in listening:
            seen += output.lines
            if len(seen) == 2:
                break
    ended = await agent.end("abort")
    everything = "".join(seen) + log.read_text() + ended.tail + str(ended.processes) + agent.command
    assert seen == ["a ********", '{"k": "********"}']
    assert "token-123" not in everything
    assert 'to\\"ken' not in everything


async def test_a_full_disk_ends_the_log_and_not_the_agent(supervisor: Supervisor) -> None:
    if not os.path.exists("/dev/full"):  # noqa: ASYNC240
        pytest.skip("no /dev/full here")
    ended = await supervisor.run(shell("echo one; echo two", log_path="/dev/full"))
    assert (ended.exit_code, ended.tail) == (0, "one\ntwo\n")
    assert ended.problem is not None
    assert "No space left" in ended.problem
