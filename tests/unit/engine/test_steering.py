"""Redirects: texts in the directory of a run, in order, each taken once, whatever else stands there."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import anyio
import pytest

from sidecar import layout
from sidecar.engine import redirects
from sidecar.errors import InputError, NotFound
from sidecar.model import ulid


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    run_id = ulid.new()
    os.makedirs(layout.run_directory(str(tmp_path), run_id))
    return run_id


@pytest.fixture
def directory(tmp_path: Path, run_id: str) -> Path:
    return Path(layout.run_directory(str(tmp_path), run_id))


def take(root: str, run_id: str) -> list[str]:
    """Hear all that waits."""
    found = redirects.waiting(root, run_id)
    for name, _ in found:
        redirects.forget(root, run_id, name)
    return [text for _, text in found if text]


def test_texts_are_taken_once_and_in_the_order_in_which_they_were_left(tmp_path: Path, run_id: str) -> None:
    left = [f"text {number}" for number in range(20)]
    for text in left:
        redirects.redirect(str(tmp_path), run_id, text)
    assert take(str(tmp_path), run_id) == left
    assert take(str(tmp_path), run_id) == []


def test_a_text_is_whole_and_private_and_leaves_nothing_beside_it(tmp_path: Path, run_id: str, directory: Path) -> None:
    path = redirects.redirect(str(tmp_path), run_id, "  use tabs ü\n")
    assert [str(entry) for entry in directory.iterdir()] == [path]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert Path(path).read_text(encoding="utf-8") == "use tabs ü"
    take(str(tmp_path), run_id)
    assert list(directory.iterdir()) == []


def test_a_text_that_says_nothing_or_too_much_is_refused(tmp_path: Path, run_id: str, directory: Path) -> None:
    with pytest.raises(InputError, match="say something"):
        redirects.redirect(str(tmp_path), run_id, " \n")
    with pytest.raises(InputError, match="at most 65536 bytes"):
        redirects.redirect(str(tmp_path), run_id, "ü" * 40_000)
    assert list(directory.iterdir()) == []
    redirects.redirect(str(tmp_path), run_id, "x" * redirects.MAX_BYTES)
    assert take(str(tmp_path), run_id) == ["x" * redirects.MAX_BYTES]


def of_millisecond(milliseconds: int) -> str:
    """The last of all ids that one millisecond can have."""
    digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    return "".join(digits[milliseconds >> shift & 31] for shift in range(45, -1, -5)) + "Z" * 16


def test_a_text_of_the_same_millisecond_still_comes_behind_the_one_before(
    tmp_path: Path, run_id: str, directory: Path
) -> None:
    for _ in range(20):
        # The last id of a millisecond that is only just to come: most ids that are made now would be before it.
        soon = of_millisecond(time.time_ns() // 1_000_000 + 2)
        (directory / f"redirect.{soon}").write_text("before")
        redirects.redirect(str(tmp_path), run_id, "after")
        assert take(str(tmp_path), run_id) == ["before", "after"]


def test_what_is_no_regular_file_is_never_read_and_never_waited_for(
    tmp_path: Path, run_id: str, directory: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not for agents")
    names = [f"redirect.{ulid.new()}" for _ in range(3)]
    (directory / names[0]).symlink_to(secret)
    os.mkfifo(directory / names[1])
    (directory / names[2]).mkdir()
    redirects.redirect(str(tmp_path), run_id, "read me")
    assert take(str(tmp_path), run_id) == ["read me"]
    assert secret.read_text() == "not for agents"


def test_a_file_of_somebody_else_is_read_up_to_the_limit_and_decoded_whatever_it_holds(
    tmp_path: Path, run_id: str, directory: Path
) -> None:
    (directory / f"redirect.{ulid.new()}").write_bytes(b"\xff" + b"x" * 100_000)
    (found,) = take(str(tmp_path), run_id)
    assert found == "\ufffd" + "x" * (redirects.MAX_BYTES - 1)


@pytest.mark.anyio
async def test_a_watch_outlives_the_directory(tmp_path: Path, run_id: str, directory: Path) -> None:
    heard = anyio.Event()

    async def hear(*_: str) -> None:
        heard.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            os.rmdir(directory)
            tasks.start_soon(redirects.watch, str(tmp_path), run_id, hear)
            await anyio.lowlevel.checkpoint()
            os.mkdir(directory)
            redirects.redirect(str(tmp_path), run_id, "still there")
            await heard.wait()
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_text_is_there_until_it_was_heard_and_is_heard_once_where_it_cannot_go(
    tmp_path: Path, run_id: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redirects.redirect(str(tmp_path), run_id, "one")
    heard: list[tuple[str, list[str]]] = []
    looks = 0
    unlink = os.unlink

    async def hear(_: str, text: str) -> None:
        heard.append((text, os.listdir(directory)))

    def refuse(path: str, **more: int) -> None:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise PermissionError(path)
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", refuse)  # for root, too, there are such directories, but not in every test
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(redirects.watch, str(tmp_path), run_id, hear)
            while os.listdir(directory):  # noqa: ASYNC110 - files give no event
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert [text for text, _ in heard] == ["one"]
    assert len(heard[0][1]) == 1, "it was removed before it was heard"


@pytest.mark.usefixtures("run_id")
@pytest.mark.parametrize("name", ["01JC0000000000000000000000", "..", ".", "a/b", ""])
def test_a_run_that_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        redirects.redirect(str(tmp_path), name, "text")
    assert take(str(tmp_path), name) == []
