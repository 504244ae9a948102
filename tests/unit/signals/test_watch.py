"""The watcher's decisions: whom it tells, what it arms and lets go, and whose turn it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sidecar.signals import watch
from sidecar.signals.inotify import Inotify
from sidecar.signals.watch import Polling, Watcher, source_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


@pytest.fixture
def source() -> Iterator[Inotify]:
    source = Inotify()
    yield source
    source.close()


def watches(source: Inotify) -> int:
    return Path(f"/proc/self/fdinfo/{source.fileno()}").read_text().count("inotify wd:")


def no_report(line: str) -> None:
    raise AssertionError(line)


async def ticks(watcher: Watcher, condition: list[str], count: int = 1) -> None:
    """Run until so many entries are there."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run)
        with anyio.fail_after(30):
            while len(condition) < count:  # noqa: ASYNC110 -- the entries come from plain callbacks
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("setting", ["auto", "inotify", "watchdog", "polling"])
@linux
def test_the_setting_chooses_the_source(setting: str) -> None:
    source = source_for(setting, no_report)
    expected = {"auto": "Inotify", "inotify": "Inotify", "watchdog": "WatchdogSource", "polling": "Polling"}
    assert type(source).__name__ == expected[setting]
    source.close()


@pytest.mark.anyio
async def test_a_callback_that_raises_is_reported_and_the_others_are_told(tmp_path: Path) -> None:
    reports, told = list[str](), list[str]()
    watcher = Watcher(Polling(), reports.append, tick_s=0.01)

    def broken(directory: str) -> None:
        raise RuntimeError("not today")

    watcher.add(str(tmp_path), broken)
    watcher.add(str(tmp_path), told.append)
    (tmp_path / ".stop").touch()
    await ticks(watcher, told)
    assert len(reports) == 1
    assert "not today" in reports[0]


@linux
@pytest.mark.anyio
async def test_a_callback_may_discard_and_add(tmp_path: Path) -> None:
    """Also where several wait below the same missing directory, and the first one told lets the others go."""
    directories = [tmp_path / "new" / name for name in "abc"]
    told, source = list[str](), Inotify()
    watcher = Watcher(source, no_report, tick_s=0.01)

    def once(directory: str) -> None:
        told.append(directory)
        for other in directories:
            watcher.discard(str(other), once)
        watcher.add(str(tmp_path / "next"), told.append)

    for directory in directories:
        watcher.add(str(directory), once)
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / ".stop").touch()
    for directory in directories:
        directory.mkdir(parents=True)
        (directory / ".stop").touch()
    await ticks(watcher, told, 2)
    assert told[0] in map(str, directories)
    assert told[1:] == [str(tmp_path / "next")]
    assert set(source._watch_of) == {str(tmp_path / "next")}


@pytest.mark.anyio
async def test_a_subscriber_that_leaves_while_another_joins_does_not_take_the_directory_along(tmp_path: Path) -> None:
    told, watcher = list[str](), Watcher(Polling(), no_report, tick_s=0.01)

    def leaves(directory: str) -> None:
        watcher.discard(directory, leaves)

    watcher.add(str(tmp_path), leaves)
    (tmp_path / ".stop").touch()
    watcher.add(str(tmp_path), told.append)
    assert told == [str(tmp_path)]
    (tmp_path / ".stop").unlink()
    await ticks(watcher, told, 2)


@linux
def test_a_watch_is_held_for_as_long_as_somebody_needs_it(source: Inotify, tmp_path: Path) -> None:
    watcher, on_change = Watcher(source, no_report), list[str]().append
    for _ in range(2):
        watcher.add(str(tmp_path), on_change)
    watcher.add(str(tmp_path / "a" / "b"), on_change)
    watcher.add(str(tmp_path / "a" / "c"), on_change)
    assert watches(source) == 1
    watcher.discard(str(tmp_path), on_change)
    watcher.discard(str(tmp_path), on_change)
    watcher.discard(str(tmp_path / "a" / "b"), on_change)
    assert watches(source) == 1
    assert source.names[b"a"] == 1
    watcher.discard(str(tmp_path / "a" / "c"), on_change)
    assert watches(source) == 0
    assert set(source.names) == {b".stop", b".abort"}


class Deaf(Polling):
    """Accepts some directories, and never hints about them either."""

    def arm(self, directory: str) -> bool:
        return "/silent-" in directory


def test_with_many_directories_the_polled_come_first_and_all_get_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOKS_PER_TICK", 8)
    watcher = Watcher(Deaf(), no_report)
    paths = [tmp_path / name for name in [*(f"silent-{number}" for number in range(20)), "polled-1", "polled-2"]]
    for path in paths:
        path.mkdir()
        watcher.add(str(path), no_report)
    assert watcher.polled == [str(path) for path in paths[20:]]
    rounds = [[place.path for place in watcher._due()] for _ in range(4)]
    assert all(len(round_) <= 8 for round_ in rounds)
    assert all(set(watcher.polled) <= set(round_) for round_ in rounds)
    assert {path for round_ in rounds for path in round_} == set(map(str, paths))


def test_more_polled_directories_than_a_tick_can_look_at_do_not_starve_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOKS_PER_TICK", 8)
    watcher = Watcher(Deaf(), no_report)
    paths = [
        tmp_path / f"{kind}-{number}" for kind, count in (("silent", 10), ("polled", 24)) for number in range(count)
    ]
    for path in paths:
        path.mkdir()
        watcher.add(str(path), no_report)
    assert len(watcher.polled) == 24
    assert {place.path for _ in range(20) for place in watcher._due()} == set(map(str, paths))


@pytest.mark.anyio
async def test_a_tick_that_looks_at_a_part_at_a_time_finds_a_signal_in_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LOOKS_PER_TICK", 8)
    monkeypatch.setattr(watch, "_LOOKS_PER_SLICE", 3)
    told, watcher = list[str](), Watcher(Deaf(), no_report, tick_s=0.005)
    paths = [tmp_path / f"silent-{number}" for number in range(50)]
    for path in paths:
        path.mkdir()
        watcher.add(str(path), told.append)
    for path in paths:
        (path / ".abort").touch()
    await ticks(watcher, told, 50)
    assert sorted(told) == sorted(map(str, paths))


def test_what_a_crashed_sidecar_left_aside_is_put_back_on_add(tmp_path: Path) -> None:
    (tmp_path / ".stop.taken").write_text("why")
    watcher, told = Watcher(Polling(), no_report), list[str]()
    watcher.add(str(tmp_path), told.append)
    assert told == [str(tmp_path)]
    assert (tmp_path / ".stop").read_text() == "why"
