"""Agents that do not want to be ended are ended, all of them and nobody else, in every containment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from sidecar.agents import cgroup
from sidecar.agents.containment import Containment, Name, choose
from sidecar.agents.ladder import reap
from sidecar.agents.supervisor import Agent, Launch, Supervisor
from sidecar.model import ulid
from sidecar.model.agent import AgentEnded, AgentRecord
from tests.kit import alive, eventually

KIT = Path(__file__).parent / "hostile" / "kit.py"
OWNER = KIT.with_name("owner.py")
PROGRAMS = subprocess.run([sys.executable, "-I", "-S", KIT, "names"], check=True, capture_output=True, text=True)
NAMES = PROGRAMS.stdout.split()
GRACE_S = 0.5
pytestmark = pytest.mark.anyio


@pytest.fixture(params=["cgroup", "reaper", "sweep"])
def containment(request: pytest.FixtureRequest) -> Containment:
    name: Name = request.param
    if sys.platform != "linux" and name != "sweep":
        pytest.skip("only Linux has it")
    if name == "cgroup" and (reason := cgroup.why_not()):
        pytest.skip(reason)
    return choose(name)


@pytest.fixture
def word() -> Iterator[str]:
    """A word that is in the command line of this test's processes and of no other; they are gone afterwards."""
    chosen = f"hostile-{ulid.new()}"
    yield chosen
    for process in with_word(chosen):
        process.kill()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody else's process, of the same user, in a session of its own."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def with_word(word: str) -> list[psutil.Process]:
    """Who lives with the word in the command line; psutil reads it, not the code under test."""
    found = []
    for process in psutil.process_iter():
        try:
            if word in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def waited_s() -> float:
    """How long this process was ready to run and had no processor: the machine's share in any time measured here."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def groups_left(told: dict[str, Any]) -> list[str]:
    return [record.group for record in records_in(told) if record.group and os.path.exists(record.group)]


def records_in(told: dict[str, Any]) -> list[AgentRecord]:
    return [AgentRecord(**record) for record in told["records"]]


def hostile(name: str, word: str) -> Launch:
    argv = [sys.executable, "-I", "-S", str(KIT), name, word]
    return Launch(argv=argv, cwd="/", kill_after_s=GRACE_S, run_id=name)


async def ready(agent: Agent) -> None:
    with anyio.fail_after(120):
        async for output in agent.pipes.subscribe():
            if "ready" in output.lines:
                return
    raise AssertionError(f"{agent.command} ended before it was ready")


async def test_every_hostile_program_is_ended_whole_and_once_and_nobody_else_is(
    containment: Containment, word: str, bystander: subprocess.Popen[bytes]
) -> None:
    events: list[AgentEnded] = []
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        # A neighbour with a daemon of its own: the same owner's, but nobody asked for its end.
        neighbour = await supervisor.start(hostile("double_fork_empty_environment", f"{word}-neighbour"))
        await ready(neighbour)
        agents = {}
        for name in NAMES:
            agents[name] = await supervisor.start(hostile(name, word))
            await ready(agents[name])
        began, had_waited_s = time.monotonic(), waited_s()
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for agent in agents.values():
                    tasks.start_soon(agent.end, "abort")
        taken_s = time.monotonic() - began - (waited_s() - had_waited_s)
        left = [process.cmdline() for process in with_word(word)]
        assert left == []
        assert [name for name, agent in agents.items() if alive(agent.pid)] == []
        assert taken_s < GRACE_S + 2
        assert Counter(event.run_id for event in events) == Counter(NAMES)
        assert {event.run_id: event.survivors for event in events} == dict.fromkeys(NAMES, 0)
        assert next(event.rung for event in events if event.run_id == "stopped") == "term"
        assert len(with_word(f"{word}-neighbour")) == 2
        assert bystander.poll() is None
    assert with_word(f"{word}-neighbour") == []
    assert len(events) == len(NAMES) + 1


async def test_the_rung_tells_who_left_on_sigterm_and_who_had_to_be_killed(containment: Containment, word: str) -> None:
    async with Supervisor("/", containment=containment) as supervisor:
        deaf = await supervisor.start(hostile("deaf_child_in_session", word))
        await ready(deaf)
        ended = await deaf.end("timeout")
    assert [process.rung for process in ended.processes] == ["term", "kill"]
    assert ended.rung == "kill"
    assert ended.reason == "timeout"
    assert ended.exit_code == -signal.SIGTERM
    assert ended.processes[1].ms_to_death >= 1000 * GRACE_S


async def test_an_orphan_that_dropped_every_mark_is_ended_with_its_agent(containment: Containment, word: str) -> None:
    if containment.name == "sweep":
        pytest.skip("without cgroup and sub-reaper nothing leads back to it, as the report says")
    async with Supervisor("/", containment=containment) as supervisor:
        agent = await supervisor.start(hostile("drops_every_mark", word))
        await ready(agent)
        assert len(with_word(word)) == 2
        ended = await agent.end("abort")
        assert with_word(word) == []
        assert len(ended.processes) == 2


async def test_an_orphan_that_dropped_every_mark_does_not_outlive_its_owner(
    containment: Containment, word: str
) -> None:
    if containment.name == "sweep":
        pytest.skip("without cgroup and sub-reaper nothing leads back to it, as the report says")
    with an_owner(containment, word, ["ignores_term", "drops_every_mark"]) as (owner, _):
        assert len(with_word(word)) == 4  # the owner has the word too
        owner.kill()
        await eventually(lambda: not with_word(word))


@contextmanager
def an_owner(
    containment: Containment, word: str, names: list[str] = NAMES
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    owner = subprocess.Popen(
        [sys.executable, str(OWNER), containment.name, word, str(KIT), *names],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with owner:
        try:
            assert owner.stdout is not None
            told = json.loads(owner.stdout.readline())
            assert owner.stdout.readline() == "ready\n"
            yield owner, told
        finally:
            owner.kill()


async def test_an_owner_killed_by_9_takes_every_hostile_tree_along(
    containment: Containment, word: str, bystander: subprocess.Popen[bytes]
) -> None:
    with an_owner(containment, word) as (owner, told):
        assert len(with_word(word)) > len(NAMES)
        owner.kill()
        await eventually(lambda: not with_word(word) and not any(alive(record.pid) for record in records_in(told)))
    assert bystander.poll() is None
    await eventually(lambda: not psutil.pid_exists(told["sentinel"]))
    assert groups_left(told) == []


async def test_what_outlived_owner_and_sentinel_is_reaped_by_the_next_sidecar(
    containment: Containment, word: str, bystander: subprocess.Popen[bytes]
) -> None:
    with an_owner(containment, word) as (owner, told):
        # The owner first held still: it would notice the sentinel's death and end the agents itself.
        os.kill(owner.pid, signal.SIGSTOP)
        os.kill(told["sentinel"], signal.SIGKILL)
        os.kill(owner.pid, signal.SIGKILL)
    records = records_in(told)
    assert len(with_word(word)) >= len(NAMES)
    with anyio.fail_after(120):
        ended, survivors = await reap(records, "/", containment, kill_after_s=GRACE_S)
    assert with_word(word) == []
    assert [record.pid for record in records if alive(record.pid)] == []
    assert survivors == 0
    assert len(ended) >= len(NAMES)
    assert bystander.poll() is None
    assert groups_left(told) == []


async def test_an_abort_at_any_moment_of_an_agents_life_gives_one_end_and_an_empty_tree(
    containment: Containment, word: str, request: pytest.FixtureRequest
) -> None:
    rounds = 200 if request.config.getoption("--long", default=False) else 40
    chance = random.Random(20261116)
    events: list[AgentEnded] = []
    script = "echo first; (setsid sleep 1000 $1 2>/dev/null || exec sleep 0.01) & sleep 0.01; echo last"
    async with Supervisor("/", containment=containment, on_ended=events.append) as supervisor:
        for number in range(rounds):
            launch = Launch(argv=["sh", "-c", script, "sh", word], cwd="/", run_id=str(number), kill_after_s=GRACE_S)
            # The moment is the subject here: before the request is out, before exec, in mid-life, at the exit.
            with anyio.move_on_after(chance.choice([0, 0.001, 0.002, 0.005, 0.02]) * chance.random()):
                await supervisor.run(launch)
            await eventually(lambda: not supervisor.agents)
            assert len(events) == number + 1
    assert Counter(event.run_id for event in events) == Counter(map(str, range(rounds)))
    assert {event.survivors for event in events} == {0}
    assert {event.reason for event in events} <= {"abort", "exited"}
    assert with_word(word) == []
