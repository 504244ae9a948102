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
from sidecar.agents.process import Launch, Supervisor

LINES = 'import sys; [sys.stdout.write(\'{"type": "line", "number": 123456789}\\n\' * 1000) for _ in range(%d)]'


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
    command = [sys.executable, "-c", LINES % thousands]
    raws, ours = [], []
    async with Supervisor("/") as supervisor:
        for _ in range(5):
            begin = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout
                os.set_blocking(process.stdout.fileno(), False)
                size = 0
                while True:
                    await anyio.wait_readable(process.stdout)
                    data = os.read(process.stdout.fileno(), 1 << 16)
                    if not data:
                        break
                    size += len(data)
            raws.append((time.perf_counter() - begin) * 1000)
            begin = time.perf_counter()
            agent = await supervisor.start(Launch(argv=command, cwd="/"))
            count = 0
            async for output in agent.subscribe(1 << 30):
                count += len(output.lines)
            ours.append((time.perf_counter() - begin) * 1000)
            assert count == thousands * 1000
    name = f"agent: {thousands * 1000:,} lines to a subscriber"
    note = f"{size / 1e3 / median(ours):,.0f} MB/s"
    return [Figure(name, median(ours), "ms", "raw non-blocking reader", median(raws), limit=2, note=note)]


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
