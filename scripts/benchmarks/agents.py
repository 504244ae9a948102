"""What supervision costs: starting, streaming, and ending process trees, against doing it bare."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import anyio
import psutil

from benchmarks.report import Figure
from sidecar.agents.supervisor import Launch, Supervisor

LINE = '{"type": "line", "number": 123456789}'
PRINTED = "line = '%s'\nfor _ in range(%d): print(line)"
PAGED = """
import os
page = b'%s\\n' * 1000
for _ in range(%d):
    left = memoryview(page)
    while left:
        left = left[os.write(1, left) :]
"""


def measure(*, quick: bool) -> list[Figure]:
    """Each in an owner of its own."""
    return [
        *anyio.run(_spawn, 40 if quick else 200),
        *anyio.run(_crowd, 200 if quick else 1000),
        *anyio.run(_streaming, 100 if quick else 1000),
        _abort(5 if quick else 25),
    ]


async def _spawn(rounds: int) -> list[Figure]:
    bare: list[float] = []
    ours: list[float] = []
    async with Supervisor("/") as supervisor:
        for _ in range(rounds):
            begin = time.perf_counter()
            with subprocess.Popen(["/bin/true"], start_new_session=True) as process:
                process.wait()
            bare.append((time.perf_counter() - begin) * 1000)
            begin = time.perf_counter()
            await supervisor.run(Launch(argv=["/bin/true"], cwd="/"))
            ours.append((time.perf_counter() - begin) * 1000)
        name = f"agent: start and reap a no-op ({supervisor.containment.name})"
    return [Figure(name, median(ours), "ms", "subprocess.Popen", median(bare), limit=3)]


async def _crowd(count: int) -> list[Figure]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    own = psutil.Process()
    async with Supervisor("/") as supervisor:
        await supervisor.run(Launch(argv=["/bin/true"], cwd="/"))
        before = own.memory_info().rss
        agents = [await supervisor.start(Launch(argv=["/bin/sleep", "1000"], cwd="/")) for _ in range(count)]
        each_kb = (own.memory_info().rss - before) / 1024 / count
        threads = threading.active_count()
        begin = time.monotonic()
        async with anyio.create_task_group() as tasks:
            for agent in agents:
                tasks.start_soon(agent.end, "abort")
        taken_s = time.monotonic() - begin
        survivors = sum([(await agent.wait()).survivors for agent in agents])
    return [
        Figure(f"agent: {count:,} sleeps ended and reaped", taken_s, "s", limit=3, note=f"survivors {survivors}"),
        Figure(f"agent: {count:,} sleeps, threads", threads, "", limit=1),
        Figure(f"agent: {count:,} sleeps, memory each", each_kb, "KB", limit=64),
    ]


async def _streaming(thousands: int) -> list[Figure]:
    """A program that prints line by line, and one that writes pages of lines as fast as the pipe takes them."""
    async with Supervisor("/") as supervisor:
        printed = [sys.executable, "-I", "-S", "-c", PRINTED % (LINE, thousands * 1000)]
        paged = [sys.executable, "-I", "-S", "-c", PAGED % (LINE, thousands * 10)]
        return [
            await _streamed(supervisor, printed, thousands * 1000, "printed", limit=2),
            await _streamed(supervisor, paged, thousands * 10_000, "in pages, as `yes` does", limit=None),
        ]


async def _streamed(supervisor: Supervisor, command: list[str], count: int, how: str, *, limit: float | None) -> Figure:
    raw: list[float] = []
    splitting: list[float] = []
    ours: list[float] = []
    for _ in range(5):
        raw.append(await _bare(command))
        splitting.append(await _bare(command, splits=True))
        begin = time.perf_counter()
        agent = await supervisor.start(Launch(argv=command, cwd="/"))
        received = 0
        async for output in agent.pipes.subscribe(1 << 30):
            received += len(output.lines)
        ours.append((time.perf_counter() - begin) * 1000)
        assert received == count
    speed = (len(LINE) + 1) * count / 1e3 / median(ours)
    # What `str.split` costs is most of it: a bare reader that gives lines too is the fairer yardstick there.
    note = f"{speed:,.0f} MB/s; {median(ours) / median(splitting):.2f} times a bare reader that splits lines"
    name = f"agent: {count:,} lines {how}, to a subscriber"
    return Figure(name, median(ours), "ms", "raw non-blocking reader", median(raw), limit=limit, note=note)


async def _bare(command: list[str], *, splits: bool = False) -> float:
    """How long nothing but reading takes, in milliseconds; with lines made of it or not."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        rest = b""
        while True:
            await anyio.wait_readable(process.stdout)
            data = os.read(descriptor, 1 << 16)
            if not data:
                break
            if splits:
                whole, _, last = data.rpartition(b"\n")
                (rest + whole).decode("utf-8", "replace").split("\n")
                rest = last
    return (time.perf_counter() - begin) * 1000


def _abort(rounds: int) -> Figure:
    """The whole way: `sidecar agent run`, the file, the ladder, the receipt."""
    sidecar = str(Path(sys.executable).with_name("sidecar"))
    taken = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as root:
            script = "sleep 1000 & touch born; wait"
            command = [sidecar, "agent", "run", "command", "-p", f'command=["sh", "-c", "{script}"]', "go"]
            with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as owner:
                while not os.path.exists(f"{root}/born"):
                    time.sleep(0.001)
                tree = psutil.Process(owner.pid).children(recursive=True)
                begin = time.perf_counter()
                Path(f"{root}/.swissarmyhammer/.abort").touch()
                while any(process.name() == "sleep" and process.is_running() for process in _living(tree)):
                    time.sleep(0.0005)
                taken.append((time.perf_counter() - begin) * 1000)
                owner.wait()
    return Figure("agent: cooperative abort, file to empty tree", median(taken), "ms", limit=100)


def _living(processes: list[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except psutil.Error:
            continue
    return living
