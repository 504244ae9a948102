"""How fast a signal is noticed, against a raw inotify reader in the same event loop, and what watching costs at scale.

A writer process performs one operation at a time and reports when; the callbacks note when they were called. The
subjects take turns in short blocks, each in a directory of its own, so that a noisy moment hits all of them alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.lowlevel
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from benchmarks.report import Figure
from sidecar.signals.watch import Watcher, source_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CREATE_MOVED_CLOSED = 0x100 | 0x80 | 0x8
BLOCK = 50
OPERATIONS = {
    "echo > .stop": "echo",
    "temporary file + rename": "rename",
    "behind an unpaired move": "move",
    "under 500 changes a second": "rename",
}

# Runs as a process of its own: reads `operation directory`, does it, answers with the moment of the call that
# makes the signal appear. What comes before that call has had its millisecond, as with a writer that syncs its
# temporary file: otherwise the readers would be awake already.
WRITER = """
import os, sys, time
n = 0
for line in sys.stdin:
    operation, directory = line.rstrip("\\n").split(" ", 1)
    n += 1
    if operation != "echo":
        for name in (".stop.tmp", "scratch"):
            with open(f"{directory}/{name}", "w") as file:
                file.write(str(n))
        time.sleep(0.001)
    if operation == "move":
        os.rename(f"{directory}/scratch", f"{directory}/../moved-out")
    at = time.monotonic_ns()
    if operation == "echo":
        file = os.open(f"{directory}/.stop", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, b"%d" % n)
        os.close(file)
    else:
        os.rename(f"{directory}/.stop.tmp", f"{directory}/.stop")
    print(at, flush=True)
"""
CHURN = """
import os, sys, time
due = time.monotonic()
told = False
while True:
    for directory in sys.argv[1:]:
        name = f"{directory}/churn{time.monotonic_ns() % 50}"
        if os.path.exists(name):
            os.rename(name, f"{directory}/../churned")
        else:
            open(name, "w").close()
    if not told:
        print("changing", flush=True)
        told = True
    due += 0.002
    time.sleep(max(0, due - time.monotonic()))
"""


class Subject(Protocol):
    """Something that notices files in one directory and calls back in the event loop."""

    def start(self, directory: str, noticed: Callable[[], None]) -> contextlib.AbstractAsyncContextManager[None]: ...


class RawInotify:
    """The least that Python can do: one descriptor, one reader on the loop, no look at anything."""

    @contextlib.asynccontextmanager
    async def start(self, directory: str, noticed: Callable[[], None]):  # type: ignore[no-untyped-def]
        libc = ctypes.CDLL(None, use_errno=True)
        file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        libc.inotify_add_watch(file, os.fsencode(directory), CREATE_MOVED_CLOSED)
        loop = asyncio.get_running_loop()

        def readable() -> None:
            if b".stop\0" in os.read(file, 65536):
                noticed()

        loop.add_reader(file, readable)
        try:
            yield
        finally:
            loop.remove_reader(file)
            os.close(file)


class Sidecar:
    """Our watcher, with everything that it does."""

    @contextlib.asynccontextmanager
    async def start(self, directory: str, noticed: Callable[[], None]):  # type: ignore[no-untyped-def]
        watcher = Watcher(source_for("auto", print), print)
        async with anyio.create_task_group() as group:
            await group.start(watcher.run)
            watcher.add(directory, lambda _: noticed() if os.path.lexists(f"{directory}/.stop") else None)
            yield
            group.cancel_scope.cancel()


class Watchdog:
    """watchdog as its documentation shows it."""

    @contextlib.asynccontextmanager
    async def start(self, directory: str, noticed: Callable[[], None]):  # type: ignore[no-untyped-def]
        loop = asyncio.get_running_loop()

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if str(event.src_path).endswith("/.stop") or str(event.dest_path).endswith("/.stop"):
                    loop.call_soon_threadsafe(noticed)

        observer = Observer()
        observer.schedule(Handler(), directory)
        observer.start()
        try:
            yield
        finally:
            observer.stop()
            observer.join()


SUBJECTS: dict[str, Subject] = {"raw": RawInotify(), "sidecar": Sidecar(), "watchdog": Watchdog()}


def measure(*, quick: bool) -> list[Figure]:
    """Latencies, then ten thousand directories."""
    if sys.platform != "linux":
        return []
    return [*anyio.run(_latencies, 100 if quick else 2_000), *_at_scale(1_000 if quick else 10_000)]


async def _latencies(trials: int) -> list[Figure]:
    figures = []
    for name, operation in OPERATIONS.items():
        taken = await _compare(operation, trials, churn="changes" in name)
        raw = median(taken["raw"])
        for subject in ("sidecar", "watchdog"):
            limit = 2.0 if subject == "sidecar" else None
            worst = f"worst {max(taken[subject]):.1f} ms of {len(taken[subject])}, raw's {max(taken['raw']):.1f}"
            figure = f"notice: {name}, {subject}"
            figures.append(Figure(figure, median(taken[subject]), "ms", "raw inotify", raw, limit, worst))
        figures.append(Figure(f"notice: {name}, sidecar's worst", max(taken["sidecar"]), "ms", limit=100))
    return figures


async def _compare(operation: str, trials: int, *, churn: bool) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    for begin in range(0, trials, BLOCK):
        for name, subject in SUBJECTS.items():
            count = min(BLOCK, trials - begin)
            if name == "watchdog" and operation == "move":
                count = 2  # it takes half a second for each
            taken[name] += await _block(subject, operation, count, churn=churn)
    return taken


async def _block(subject: Subject, operation: str, count: int, *, churn: bool) -> list[float]:
    taken = []
    with _workspace() as directory, _writer() as write, _churning(directory) if churn else contextlib.nullcontext():
        noticed = anyio.Event()
        at = 0

        def notice() -> None:
            nonlocal at
            at = at or time.monotonic_ns()
            noticed.set()

        async with subject.start(directory, notice):
            for _ in range(count):
                noticed, at = anyio.Event(), 0
                write.stdin.write(f"{operation} {directory}\n")  # type: ignore[union-attr]
                write.stdin.flush()  # type: ignore[union-attr]
                with anyio.fail_after(10):
                    await noticed.wait()
                await anyio.wait_readable(write.stdout)  # type: ignore[arg-type]
                taken.append((at - int(write.stdout.readline())) / 1e6)  # type: ignore[union-attr]
                os.unlink(f"{directory}/.stop")
                await anyio.sleep(0.003)  # let stragglers of this round arrive before the next begins
    return taken


@contextlib.contextmanager
def _writer() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        yield writer
        assert writer.stdin
        writer.stdin.close()


@contextlib.contextmanager
def _workspace() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as parent:
        os.mkdir(f"{parent}/workspace")
        yield f"{parent}/workspace"


@contextlib.contextmanager
def _churning(directory: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", CHURN, directory], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()  # the first change: from here on it is what it is called
            yield
            assert process.poll() is None, "the churn ended before the measurement did"
        finally:
            process.kill()


def _at_scale(directories: int) -> list[Figure]:
    one, many = _scale_child(1), _scale_child(directories)
    name = f"{directories:,} directories"
    return [
        Figure(f"{name}: set up", many["set_up_s"], "s", limit=1.0),
        Figure(f"{name}: threads", many["threads"], "", limit=1),
        Figure(f"{name}: memory more than with one", (many["rss_kb"] - one["rss_kb"]) / 1024, "MB", limit=10),
        Figure(
            f"{name}: idle CPU", many["idle_cpu"] * 100, "%", limit=2, note=f"with one: {one['idle_cpu'] * 100:.2f} %"
        ),
        Figure(f"{name}: notice", many["latency_ms"], "ms", "with one directory", one["latency_ms"], limit=2),
    ]


def _scale_child(directories: int) -> dict[str, float]:
    """In a process of its own, so that memory and threads are the watcher's."""
    command = [sys.executable, "-m", "benchmarks.watching", str(directories)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # type: ignore[no-any-return]


async def _scale(count: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        names = [f"{parent}/workspace-{number}" for number in range(count)]
        for name in names:
            os.mkdir(name)
        noticed: dict[str, int] = {}

        def notice(directory: str) -> None:
            noticed.setdefault(directory, time.monotonic_ns())

        watcher = Watcher(source_for("auto", print), print)
        begin = time.monotonic()
        for name in names:
            watcher.add(name, notice)
        async with anyio.create_task_group() as group:
            await group.start(watcher.run)
            set_up_s = time.monotonic() - begin
            latencies = []
            for name in names[:: max(1, count // 100)] * (100 if count == 1 else 1):
                noticed.clear()
                at = time.monotonic_ns()
                os.close(os.open(f"{name}/.stop", os.O_CREAT | os.O_WRONLY))
                while name not in noticed:
                    await anyio.lowlevel.checkpoint()
                latencies.append((noticed[name] - at) / 1e6)
                os.unlink(f"{name}/.stop")
                await anyio.sleep(0.005)
            cpu, begin = time.process_time(), time.monotonic()
            await anyio.sleep(6)
            idle_cpu = (time.process_time() - cpu) / (time.monotonic() - begin)
            group.cancel_scope.cancel()
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    figures = {
        "set_up_s": set_up_s,
        "threads": int(fields["Threads"]),
        "rss_kb": int(fields["VmRSS"].split()[0]),
        "idle_cpu": idle_cpu,
        "latency_ms": median(latencies),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    anyio.run(_scale, int(sys.argv[1]))
