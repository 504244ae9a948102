"""Where the system refuses events, or never sends any, the tick takes over, and one line says so."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify and namespaces are Linux's")

# What every program below starts with: a watcher, and a way to wait for what it says.
PROLOGUE = """
import anyio, json, os, resource, subprocess, sys
from sidecar.signals.watch import source_for
from sidecar.signals.watch import Watcher

base, out, calls, reports = sys.argv[1], {}, [], []

async def until(condition):
    with anyio.fail_after(120):
        while not condition():
            await anyio.sleep(0.005)

def note(directory):
    calls.append([os.path.basename(directory), os.path.exists(directory + "/.stop")])
"""
EPILOGUE = """
anyio.run(main)
print(json.dumps(out))
"""


def run(program: str, base: Path, *, isolated: tuple[str, ...] = ()) -> dict[str, Any]:
    """The program's `out`; in namespaces of its own, where it is root, if some are named."""
    command = [sys.executable, "-c", PROLOGUE + program + EPILOGUE, str(base)]
    if isolated:
        command = ["unshare", "--user", "--map-root-user", *isolated, *command]
        _need(command[: len(isolated) + 3])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _need(unshare: list[str]) -> None:
    try:
        probe = subprocess.run([*unshare, "true"], capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if probe.returncode:
        pytest.skip(f"this system grants no namespaces: {probe.stderr.strip()}")


def test_beyond_the_watch_limit_directories_are_polled_and_armed_again_when_there_is_room(tmp_path: Path) -> None:
    out = run(
        """
limit = "/proc/sys/user/max_inotify_watches"
async def main():
    open(limit, "w").write("3")
    watcher = Watcher(source_for("inotify", reports.append), reports.append, tick_s=0.02)
    for number in range(8):
        os.mkdir(f"{base}/{number}")
        watcher.add(f"{base}/{number}", note)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        out["polled"] = sorted(map(os.path.basename, watcher.polled))
        for number in (0, 7):
            open(f"{base}/{number}/.stop", "w").close()
            await until(lambda: [str(number), True] in calls)
        open(limit, "w").write("1000")
        await until(lambda: not watcher.polled)
        out["reports"] = reports
        tasks.cancel_scope.cancel()
""",
        tmp_path,
        isolated=("--kill-child",),
    )
    assert out["polled"] == ["3", "4", "5", "6", "7"]
    assert len(out["reports"]) == 1
    assert "max_user_watches" in out["reports"][0]


@pytest.mark.parametrize("setting", ["auto", "inotify", "watchdog"])
def test_without_a_descriptor_for_events_the_watcher_polls_and_says_so(setting: str, tmp_path: Path) -> None:
    out = run(
        f"""
async def main():
    import sidecar.signals.watchdog_source
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        source = source_for("{setting}", reports.append)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    watcher = Watcher(source, reports.append, tick_s=0.02)
    watcher.add(base, note)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        open(base + "/.stop", "w").close()
        await until(lambda: calls)
        tasks.cancel_scope.cancel()
    out.update(polled=watcher.polled, reports=reports)
""",
        tmp_path,
    )
    assert out["polled"] == [str(tmp_path)]
    assert len(out["reports"]) == 1
    assert "looked for every second" in out["reports"][0]


@pytest.mark.parametrize("setting", ["inotify", "watchdog", "polling"])
def test_a_file_system_mounted_over_the_directory_is_watched_and_so_is_what_was_below_it(
    setting: str, tmp_path: Path
) -> None:
    out = run(
        f"""
async def main():
    watcher = Watcher(source_for("{setting}", reports.append), reports.append, tick_s=0.02)
    watcher.add(base, note)
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        subprocess.run(["mount", "-t", "tmpfs", "none", base], check=True)
        open(base + "/.stop", "w").close()
        await until(lambda: calls and calls[-1][1])
        subprocess.run(["umount", base], check=True)
        await until(lambda: not calls[-1][1])
        open(base + "/.stop", "w").close()
        await until(lambda: calls[-1][1])
        tasks.cancel_scope.cancel()
    out.update(reports=reports)
""",
        tmp_path,
        isolated=("--mount",),
    )
    assert out["reports"] == []
