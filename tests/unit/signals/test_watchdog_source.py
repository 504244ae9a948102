"""The watchdog source keeps watchdog prompt, and its threads alive."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from watchdog.events import DirDeletedEvent, FileCreatedEvent

from sidecar.signals.watchdog_source import WatchdogSource


@pytest.fixture
def source() -> Iterator[WatchdogSource]:
    source = WatchdogSource()
    source.names[b".stop"] += 1
    yield source
    source.close()
    source.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere watchdog holds nothing back")
def test_watchdog_is_never_asked_for_what_it_would_hold_back(source: WatchdogSource, tmp_path: Path) -> None:
    source.arm(str(tmp_path))
    moved_from = 0x40
    (emitter,) = source._observer.emitters
    assert not emitter.get_event_mask_from_filter() & moved_from  # type: ignore[attr-defined]


def test_a_directory_that_was_deleted_gets_a_new_watch_even_if_its_thread_still_lives(
    source: WatchdogSource, tmp_path: Path
) -> None:
    source.arm(str(tmp_path))
    (watched,), (emitter,) = source._watched.values(), source._observer.emitters
    watched.dispatch(DirDeletedEvent(str(tmp_path.resolve())))
    assert source.drain() == {(str(tmp_path), b"")}
    source.arm(str(tmp_path))
    (successor,) = source._observer.emitters
    assert successor is not emitter
    assert successor.is_alive()
    assert source.drain() == set()


def test_an_event_that_cannot_be_understood_ends_no_thread_and_renews_the_watch(
    source: WatchdogSource, tmp_path: Path
) -> None:
    source.arm(str(tmp_path))
    (watched,) = source._watched.values()
    watched.dispatch(FileCreatedEvent(object()))  # type: ignore[arg-type]
    assert source.drain() == {(str(tmp_path), b"")}


def test_only_wanted_names_are_hinted(source: WatchdogSource, tmp_path: Path) -> None:
    source.arm(str(tmp_path))
    (watched,) = source._watched.values()
    real = tmp_path.resolve()
    for path in (real / "x", real / "deeper" / ".stop", real.parent / ".stop", real / ".stop"):
        watched.dispatch(FileCreatedEvent(str(path)))
    assert source.drain() == {(str(tmp_path), b".stop")}
