"""Whatever way a signal file comes or goes, and whatever happens to its directory, the watcher says so."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from sidecar.signals.inotify import Inotify
from sidecar.signals.watch import Watcher, source_for
from tests.kit import DEADLINE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")]

SOON_S = 0.02
NEVER_S = 3600  # no tick: only events can tell
BY_EVENT = [
    pytest.param(("inotify", NEVER_S), id="inotify"),
    pytest.param(("watchdog", NEVER_S), id="watchdog"),
    pytest.param(("polling", SOON_S), id="polling"),
]
BY_TICK = [pytest.param((setting, SOON_S), id=setting) for setting in ("inotify", "watchdog", "polling")]


class Heard:
    """What the watcher said: each time the directory, which signals stood there, and what the stop file said."""

    def __init__(self) -> None:
        self.reports: list[str] = []
        self.calls: list[tuple[str, set[str], str]] = []
        self._more = anyio.Event()

    def __call__(self, directory: str) -> None:
        there = {name for name in (".stop", ".abort") if os.path.lexists(f"{directory}/{name}")}
        self.calls.append((directory, there, _text(f"{directory}/.stop")))
        self._more.set()
        self._more = anyio.Event()

    def last(self, directory: str | Path) -> tuple[set[str], str]:
        return next(
            ((there, text) for where, there, text in reversed(self.calls) if where == str(directory)), (set(), "")
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(DEADLINE_S):
            while not condition():
                await self._more.wait()

    async def signals(self, directory: str | Path, *names: str) -> None:
        await self.until(lambda: self.last(directory)[0] == set(names))


def _text(path: str) -> str:
    if not os.path.isfile(path):  # a FIFO, which would block
        return ""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:  # gone meanwhile
        return ""


@asynccontextmanager
async def watching(how: tuple[str, float], *directories: Path) -> AsyncIterator[tuple[Watcher, Heard]]:
    heard = Heard()
    watcher = Watcher(source_for(how[0], heard.reports.append), heard.reports.append, tick_s=how[1])
    for directory in directories:
        watcher.add(str(directory), heard)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        yield watcher, heard
        tasks.cancel_scope.cancel()
    assert heard.reports == []


async def shell(script: str, cwd: Path) -> None:
    await anyio.run_process(["sh", "-ec", script], cwd=cwd)


def _watched_inodes(source: Inotify) -> list[int]:
    lines = Path(f"/proc/self/fdinfo/{source.fileno()}").read_text().splitlines()
    return [int(line.split(" ino:")[1].split()[0], 16) for line in lines if line.startswith("inotify")]


def _queue_capacity() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    directory = tmp_path / "ws"
    directory.mkdir()
    return directory


@pytest.mark.parametrize("how", BY_EVENT)
@pytest.mark.parametrize("name", [".stop", ".abort"])
@pytest.mark.parametrize(
    "script",
    [
        "touch {}",
        "echo x > {}",
        "echo x > tmp; mv tmp {}",
        "echo x > ../tmp; mv ../tmp {}",
        "echo x > tmp; ln tmp {}",
        "mkfifo {}",
        "mkdir {}",
        "ln -s /nowhere/at/all {}",
        "touch other; mv other ../gone; touch {}",
    ],
)
async def test_a_signal_is_seen_however_it_was_written_and_so_is_its_end(
    how: tuple[str, float], name: str, script: str, workspace: Path
) -> None:
    async with watching(how, workspace) as (_, heard):
        await shell(script.format(name), workspace)
        await heard.signals(workspace, name)
        await shell(f"rm -r {name}", workspace)
        await heard.signals(workspace)


@pytest.mark.parametrize("how", BY_EVENT)
async def test_content_that_comes_after_the_file_is_reported_again(how: tuple[str, float], workspace: Path) -> None:
    async with watching(how, workspace) as (_, heard):
        with open(workspace / ".stop", "w") as file:
            await heard.signals(workspace, ".stop")
            file.write("because")
        await heard.until(lambda: heard.last(workspace) == ({".stop"}, "because"))


@pytest.mark.parametrize("how", BY_EVENT)
async def test_a_signal_that_replaces_another_is_reported(how: tuple[str, float], workspace: Path) -> None:
    async with watching(how, workspace) as (_, heard):
        for text in ("first", "second"):
            (workspace / "tmp").write_text(text)
            (workspace / "tmp").rename(workspace / ".stop")
            await heard.until(lambda text=text: heard.last(workspace) == ({".stop"}, text))  # type: ignore[misc]


async def test_one_event_too_many_causes_no_report(workspace: Path) -> None:
    async with watching(("inotify", SOON_S), workspace) as (_, heard):
        (workspace / ".stop").touch()
        await heard.signals(workspace, ".stop")
        with open(workspace / ".stop", "a"):  # closed again without a change
            pass
        (workspace / ".abort").touch()
        await heard.signals(workspace, ".stop", ".abort")
        assert len(heard.calls) == 2


@pytest.mark.parametrize("how", BY_EVENT)
async def test_a_directory_several_levels_below_what_exists_is_watched_as_soon_as_it_does(
    how: tuple[str, float], tmp_path: Path
) -> None:
    missing = tmp_path / "a" / "b" / "c"
    async with watching(how, missing) as (_, heard):
        await shell("mkdir a; mkdir -p a/b/c; touch a/b/c/.abort", tmp_path)
        await heard.signals(missing, ".abort")
        await shell("rm -r a", tmp_path)
        await heard.signals(missing)
        await shell("mkdir -p new/b/c; touch new/b/c/.stop; mv new a", tmp_path)
        await heard.signals(missing, ".stop")


@pytest.mark.parametrize("how", BY_EVENT)
async def test_a_file_in_the_way_of_the_directory_is_waited_out(how: tuple[str, float], workspace: Path) -> None:
    await shell("rmdir ws; touch ws", workspace.parent)
    async with watching(how, workspace / "inner") as (_, heard):
        await shell("rm ws; mkdir -p ws/inner; touch ws/inner/.stop", workspace.parent)
        await heard.signals(workspace / "inner", ".stop")


@pytest.mark.parametrize("how", BY_EVENT)
async def test_a_directory_deleted_and_recreated_stays_watched(how: tuple[str, float], workspace: Path) -> None:
    async with watching(how, workspace) as (_, heard):
        for round_ in range(3):
            (workspace / ".stop").write_text(str(round_))
            await heard.until(lambda round_=round_: heard.last(workspace) == ({".stop"}, str(round_)))  # type: ignore[misc]
            await shell("rm -r ws; mkdir ws", workspace.parent)
            await heard.signals(workspace)


@pytest.mark.parametrize("how", [BY_EVENT[0], *BY_TICK[1:]])  # watchdog does not say that a directory moved
async def test_a_directory_renamed_away_is_let_go_and_the_new_one_in_its_place_is_watched(
    how: tuple[str, float], workspace: Path
) -> None:
    async with watching(how, workspace) as (_, heard):
        (workspace / ".stop").touch()
        await heard.signals(workspace, ".stop")
        await shell("mv ws away", workspace.parent)
        await heard.signals(workspace)
        await shell("mkdir ws; touch ws/.abort", workspace.parent)
        await heard.signals(workspace, ".abort")


@pytest.mark.parametrize("how", BY_EVENT)
async def test_a_directory_replaced_by_a_link_is_watched_where_the_link_leads(
    how: tuple[str, float], workspace: Path
) -> None:
    (workspace.parent / "elsewhere").mkdir()
    async with watching(how, workspace) as (_, heard):
        await shell("rmdir ws; ln -s elsewhere ws; echo x > elsewhere/.stop", workspace.parent)
        await heard.until(lambda: heard.last(workspace) == ({".stop"}, "x\n"))


@pytest.mark.parametrize("how", BY_TICK)
async def test_a_link_that_leads_elsewhere_now_is_followed_there(how: tuple[str, float], tmp_path: Path) -> None:
    await shell("mkdir one two; ln -s one ws", tmp_path)
    async with watching(how, tmp_path / "ws") as (_, heard):
        await shell("touch one/.stop", tmp_path)
        await heard.signals(tmp_path / "ws", ".stop")
        await shell("ln -sfn two ws", tmp_path)
        await heard.signals(tmp_path / "ws")
        await shell("touch two/.abort", tmp_path)
        await heard.signals(tmp_path / "ws", ".abort")


@pytest.mark.parametrize("how", BY_TICK)
async def test_the_link_may_lead_nowhere_at_first(how: tuple[str, float], tmp_path: Path) -> None:
    (tmp_path / "ws").symlink_to("later")
    async with watching(how, tmp_path / "ws") as (_, heard):
        await shell("mkdir later; touch later/.stop", tmp_path)
        await heard.signals(tmp_path / "ws", ".stop")


@pytest.mark.parametrize("how", BY_TICK)
async def test_a_renamed_ancestor_is_noticed(how: tuple[str, float], tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "ws"
    deep.mkdir(parents=True)
    async with watching(how, deep) as (_, heard):
        (deep / ".stop").touch()
        await heard.signals(deep, ".stop")
        await shell("mv a away", tmp_path)
        await heard.signals(deep)
        await shell("mkdir -p a/b/ws; touch a/b/ws/.abort", tmp_path)
        await heard.signals(deep, ".abort")


@pytest.mark.parametrize("how", BY_TICK)
async def test_a_deleted_directory_that_a_process_still_stands_in_does_not_hide_its_successor(
    how: tuple[str, float], workspace: Path
) -> None:
    async with (
        watching(how, workspace) as (_, heard),
        await anyio.open_process(["cat"], cwd=workspace, stdin=subprocess.PIPE) as standing_there,
    ):
        await shell("rmdir ws; mkdir ws; touch ws/.stop", workspace.parent)
        await heard.signals(workspace, ".stop")
        standing_there.kill()


@pytest.mark.parametrize(
    "script",
    [
        "rm ws; ln -s other ws",
        "mv real away; mkdir -p real/below",
        "mv real/below away; mkdir real/below",
        "mkdir real/new; mv -T real/new real/below",
    ],
)
async def test_a_tick_moves_the_watch_to_where_the_path_leads_now(script: str, tmp_path: Path) -> None:
    await shell("mkdir -p real/below other; ln -s real/below ws", tmp_path)
    source = Inotify()
    watcher = Watcher(source, lambda line: None, tick_s=SOON_S)
    watcher.add(str(tmp_path / "ws"), lambda directory: None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        before = _watched_inodes(source)
        await shell(script, tmp_path)
        inode = os.stat(tmp_path / "ws").st_ino
        assert before != [inode]
        await eventually(lambda: _watched_inodes(source) == [inode])
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("how", BY_EVENT)
async def test_two_spellings_of_a_directory_are_both_told_and_either_can_go(
    how: tuple[str, float], workspace: Path
) -> None:
    link = workspace.parent / "link"
    link.symlink_to("ws")
    async with watching(how, workspace, link) as (watcher, heard):
        (workspace / ".stop").touch()
        await heard.signals(workspace, ".stop")
        await heard.signals(link, ".stop")
        watcher.discard(str(workspace), heard)
        (workspace / ".stop").unlink()
        await heard.signals(link)
        assert heard.last(workspace)[0] == {".stop"}


@pytest.mark.parametrize("how", BY_EVENT)
async def test_a_signal_is_seen_amid_churn(how: tuple[str, float], workspace: Path) -> None:
    churn = "import os\nwhile True:\n open('f', 'w').close(); os.rename('f', '../g'); os.mkdir('d'); os.rmdir('d')"
    async with (
        watching(how, workspace) as (_, heard),
        await anyio.open_process([sys.executable, "-Ic", churn], cwd=workspace, stderr=None) as churning,
    ):
        try:
            for _ in range(5):
                await shell("echo x > .stop", workspace)
                await heard.until(lambda: heard.last(workspace) == ({".stop"}, "x\n"))
                await shell("rm .stop", workspace)
                await heard.signals(workspace)
        finally:
            churning.kill()


@pytest.mark.parametrize("how", BY_EVENT)
async def test_directories_that_come_and_go_all_the_time_are_followed(how: tuple[str, float], tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    async with watching(how, deep) as (_, heard):
        await shell("for i in $(seq 100); do mkdir -p a/b; touch a/b/.stop; rm -r a; done", tmp_path)
        await shell("mkdir -p a/b; echo last > a/b/.stop", tmp_path)
        await heard.until(lambda: heard.last(deep) == ({".stop"}, "last\n"))


@pytest.mark.parametrize("recreated", [False, True])
async def test_an_overflowed_queue_costs_nothing_but_a_look_at_everything(recreated: bool, workspace: Path) -> None:
    other = workspace.parent / "other"
    other.mkdir()
    heard = Heard()
    watcher = Watcher(Inotify(), heard.reports.append, tick_s=NEVER_S)
    watcher.add(str(workspace), heard)
    watcher.add(str(other), heard)
    for _ in range(_queue_capacity() // 3 + 1):  # create, close, delete: three events that cannot be merged
        (workspace / "churn").touch()
        (workspace / "churn").unlink()
    if recreated:  # the kernel's notice that this watch is gone is among what was lost
        other.rmdir()
        other.mkdir()
    (other / ".stop").touch()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        await heard.signals(other, ".stop")
        (other / ".abort").touch()
        await heard.signals(other, ".stop", ".abort")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("recreated", [False, True])
async def test_a_queue_that_watchdog_let_overflow_costs_nothing_but_a_look_at_everything(
    recreated: bool, workspace: Path
) -> None:
    other = workspace.parent / "other"
    other.mkdir()
    script = f"""
import os
for _ in range({_queue_capacity() // 3 + 1}):
    open("ws/churn", "w").close()
    os.unlink("ws/churn")
if {recreated}:
    os.rmdir("other")
    os.mkdir("other")
open("other/.stop", "w").close()
"""
    async with watching(("watchdog", NEVER_S), workspace, other) as (_, heard):
        with subprocess.Popen([sys.executable, "-Ic", script], cwd=workspace.parent) as writer:
            # Called without letting go of the interpreter's lock: no thread of watchdog's reads anything meanwhile.
            ctypes.PyDLL(None).waitpid(writer.pid, None, 0)
            writer.returncode = 0
        await heard.signals(other, ".stop")
        (other / ".abort").touch()
        await heard.signals(other, ".stop", ".abort")


@pytest.mark.parametrize("part", ["emitter", "observer"])
async def test_a_dead_thread_of_watchdog_is_replaced(part: str, workspace: Path) -> None:
    heard = Heard()
    source = source_for("watchdog", heard.reports.append)
    watcher = Watcher(source, heard.reports.append, tick_s=SOON_S)
    watcher.add(str(workspace), heard)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        observer = source._observer  # type: ignore[attr-defined]
        dead = observer if part == "observer" else next(iter(observer.emitters))
        dead.stop()
        await eventually(lambda: not dead.is_alive())

        def replaced() -> bool:
            observer = source._observer  # type: ignore[attr-defined]
            return observer.is_alive() and [one is not dead and one.is_alive() for one in observer.emitters] == [True]

        await eventually(replaced)
        (workspace / ".stop").touch()
        await heard.signals(workspace, ".stop")
        tasks.cancel_scope.cancel()


async def test_what_a_crashed_sidecar_left_aside_is_put_back_while_watching(workspace: Path) -> None:
    async with watching(("polling", SOON_S), workspace) as (_, heard):
        (workspace / "tmp").write_text("aside")
        (workspace / "tmp").rename(workspace / ".stop.taken")
        await heard.until(lambda: heard.last(workspace) == ({".stop"}, "aside"))


@pytest.mark.parametrize("setting", ["inotify", "watchdog"])
async def test_ten_thousand_directories_or_more_than_a_source_can_hint_about_are_watched(
    setting: str, tmp_path: Path
) -> None:
    directories = [tmp_path / f"{number:05}" for number in range(10_000 if setting == "inotify" else 400)]
    for directory in directories:
        directory.mkdir()
    heard = Heard()
    threads_before = threading.active_count()
    watcher = Watcher(source_for(setting, heard.reports.append), heard.reports.append, tick_s=SOON_S)
    for directory in directories:
        watcher.add(str(directory), heard)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        for directory in directories[:: len(directories) // 20]:
            (directory / ".abort").touch()
            await heard.signals(directory, ".abort")
        assert threading.active_count() - threads_before <= (0 if setting == "inotify" else 300)
        assert len(heard.reports) == bool(watcher.polled)
        tasks.cancel_scope.cancel()
    await eventually(lambda: threading.active_count() == threads_before)
    shutil.rmtree(tmp_path)
