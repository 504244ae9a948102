"""Signal files on a real file system: written whole, read safely whatever stands there, cleared only if the same."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from sidecar.errors import SignalError
from sidecar.signals import files
from sidecar.signals.files import (
    MAX_BYTES,
    Locked,
    Trailers,
    clear,
    new_trailers,
    path_of,
    present,
    read,
    recover,
    write,
)

KINDS: list[files.Kind] = ["stop", "abort"]
DEFAULT_REASONS: dict[files.Kind, str] = {"stop": "no reason given", "abort": "Unknown abort reason"}
Result = TypeVar("Result")
SECRET = "hunter2-do-not-show"


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path)


def found(directory: str, kind: files.Kind) -> files.Signal:
    signal = read(directory, kind)
    assert signal is not None
    return signal


def promptly(function: Callable[..., Result], *arguments: object) -> Result:
    """Call it in a thread that can be left behind: what blocks must fail its test and not hang all of them."""
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)), daemon=True)
    thread.start()
    thread.join(10)
    assert results, "it blocked, or raised"
    return results[0]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_back(directory: str, kind: files.Kind) -> None:
    trailers = new_trailers()
    path = write(directory, kind, "Tests are red\n\non main", trailers)
    signal = found(directory, kind)
    assert (signal.kind, signal.path, signal.reason, signal.trailers) == (
        kind,
        path,
        "Tests are red\n\non main",
        trailers,
    )
    assert signal.signal_id == trailers.signal_id
    assert present(path)
    assert os.listdir(directory) == [files.FILE_NAMES[kind]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"\n \n", os.urandom(200) + b"\0", b"\xff\xfe\x80\x81"])
def test_a_bare_file_signals_with_the_default_reason_when_it_is_empty_or_binary(
    directory: str, kind: files.Kind, content: bytes
) -> None:
    with open(path_of(directory, kind), "wb") as file:
        file.write(content)
    assert found(directory, kind).reason == DEFAULT_REASONS[kind]


def test_every_reader_of_a_bare_file_agrees_on_its_id_and_another_file_has_another(directory: str) -> None:
    path = path_of(directory, "stop")
    open(path, "w").close()
    first = found(directory, "stop")
    assert found(directory, "stop").signal_id == first.signal_id
    os.utime(path, ns=(1, 1))
    assert found(directory, "stop").signal_id != first.signal_id


def test_the_arrival_is_when_the_file_came_not_what_its_date_says(directory: str) -> None:
    path = path_of(directory, "abort")
    before = time.time() - 1  # the kernel's clock for files runs up to a tick behind
    open(path, "w").close()
    os.utime(path, (0, 0))
    assert found(directory, "abort").arrived_at >= before


# What stands there is not a regular file.


def make_fifo(path: str) -> None:
    os.mkfifo(path)


def make_link_to_a_fifo(path: str) -> None:
    os.mkfifo(path + "-fifo")
    os.symlink(path + "-fifo", path)


def make_directory(path: str) -> None:
    os.mkdir(path)


def make_full_directory(path: str) -> None:
    os.mkdir(path)
    open(path + "/inside", "w").close()


def make_dangling_link(path: str) -> None:
    os.symlink("/nonexistent/target", path)


def make_link_to_itself(path: str) -> None:
    os.symlink(path, path)


def make_link_to_a_secret(path: str) -> None:
    with open(path + "-secret", "w", encoding="utf-8") as file:
        file.write(f"{SECRET}\n\nSignal-Id: {SECRET}\n")
    os.symlink(path + "-secret", path)


def make_link_to_a_terminal(path: str) -> None:
    os.symlink("/dev/tty", path)


def make_link_to_zeroes(path: str) -> None:
    os.symlink("/dev/zero", path)


def make_socket(path: str) -> None:
    # Bound by a short name: a socket's address has room for some hundred bytes only.
    here = os.open(".", os.O_RDONLY)
    os.chdir(os.path.dirname(path))
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.basename(path))
    finally:
        os.fchdir(here)
        os.close(here)


def make_device(path: str) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root can make a device")


ODD: list[Callable[[str], None]] = [
    make_fifo, make_link_to_a_fifo, make_directory, make_full_directory, make_dangling_link, make_link_to_itself,
    make_link_to_a_secret, make_link_to_a_terminal, make_link_to_zeroes, make_socket, make_device,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", ODD)
def test_whatever_odd_thing_stands_there_signals_with_the_default_reason_and_is_not_opened(
    directory: str, kind: files.Kind, make: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(directory, kind)
    make(path)
    assert present(path)
    opened: list[object] = []
    real_open = os.open

    def watched(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watched)
    signal = promptly(found, directory, kind)
    assert path not in opened, "to open a FIFO or a device does something already"
    assert signal.reason == DEFAULT_REASONS[kind]
    assert signal.trailers == Trailers()
    assert SECRET not in repr(signal) + signal.signal_id + repr(signal.fingerprint)


@pytest.mark.parametrize("make", [make for make in ODD if make is not make_full_directory])
def test_an_odd_thing_can_be_cleared_and_what_a_link_points_to_stays(
    directory: str, make: Callable[[str], None]
) -> None:
    path = path_of(directory, "stop")
    make(path)
    others = sorted(set(os.listdir(directory)) - {".stop"})
    assert promptly(clear, found(directory, "stop"))
    assert sorted(os.listdir(directory)) == others


@pytest.mark.parametrize("make", [make for make in ODD if make not in (make_directory, make_full_directory)])
def test_writing_over_an_odd_thing_replaces_it_and_not_what_it_points_to(
    directory: str, make: Callable[[str], None]
) -> None:
    path = path_of(directory, "stop")
    make(path)
    write(directory, "stop", "why", new_trailers())
    assert stat.S_ISREG(os.lstat(path).st_mode)
    assert found(directory, "stop").reason == "why"
    if os.path.lexists(path + "-secret"):
        with open(path + "-secret", encoding="utf-8") as file:
            assert file.read().startswith(SECRET)


def test_a_directory_that_is_not_empty_cannot_be_cleared_and_says_so(directory: str) -> None:
    make_full_directory(path_of(directory, "stop"))
    with pytest.raises(SignalError, match=r"cannot remove .*\.stop: Directory not empty"):
        clear(found(directory, "stop"))
    assert os.listdir(path_of(directory, "stop")) == ["inside"]


@pytest.mark.parametrize("make", [make_directory, make_full_directory])
def test_writing_where_a_directory_stands_is_refused_and_leaves_no_temporary_file(
    directory: str, make: Callable[[str], None]
) -> None:
    make(path_of(directory, "abort"))
    with pytest.raises(SignalError, match="it is a directory, which signals abort already"):
        write(directory, "abort", "why", new_trailers())
    assert os.listdir(directory) == [".abort"]


def test_a_sparse_file_of_ten_gigabytes_costs_one_bounded_read(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(directory, "abort")
    with open(path, "wb") as file:
        file.truncate(10 * 1024**3)
    sizes: list[int] = []
    real_read = os.read

    def counted(file: int, size: int) -> bytes:
        sizes.append(size)
        return real_read(file, size)

    monkeypatch.setattr(os, "read", counted)
    signal = found(directory, "abort")
    assert signal.reason == DEFAULT_REASONS["abort"]
    assert sizes == [MAX_BYTES + 1]
    assert clear(signal)
    assert os.listdir(directory) == []


# Between the look and the read the thing changes.


def swap_after_look(monkeypatch: pytest.MonkeyPatch, swap: Callable[[], None]) -> None:
    """Let something happen between `lstat` and `open`."""
    real_open = os.open

    def open_after_swap(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        monkeypatch.setattr(os, "open", real_open)
        swap()
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_after_swap)


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_that_vanishes_between_look_and_read_still_was_one(
    directory: str, kind: files.Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(directory, kind, "why", new_trailers())
    swap_after_look(monkeypatch, lambda: os.unlink(path))
    assert found(directory, kind).reason == DEFAULT_REASONS[kind]
    assert read(directory, kind) is None


@pytest.mark.parametrize("make", [make_fifo, make_link_to_a_secret, make_link_to_a_fifo, make_socket, make_directory])
def test_a_file_that_is_swapped_for_something_odd_after_the_look_neither_blocks_nor_leaks(
    directory: str, make: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(directory, "abort", "why", new_trailers())

    def swap() -> None:
        os.unlink(path)
        make(path)

    swap_after_look(monkeypatch, swap)
    signal = promptly(found, directory, "abort")
    assert signal.reason == DEFAULT_REASONS["abort"]
    assert SECRET not in repr(signal)


# Clearing.


def test_clearing_in_a_directory_that_is_gone_is_fine(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    write(str(tmp_path / "ws"), "stop", "why", new_trailers())
    signal = found(str(tmp_path / "ws"), "stop")
    os.unlink(signal.path)
    (tmp_path / "ws").rmdir()
    assert clear(signal)


def test_a_file_that_was_only_written_into_is_newer_even_with_the_same_size_and_date(directory: str) -> None:
    path = path_of(directory, "stop")
    for text in ("one", "two"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.utime(path, ns=(5, 5))
        if text == "one":
            old = found(directory, "stop")
    assert not clear(old)
    assert found(directory, "stop").reason == "two"


@pytest.mark.parametrize("make", [make_directory, make_fifo, make_dangling_link, make_socket])
def test_a_file_that_was_replaced_by_an_odd_thing_is_not_taken_for_it(
    directory: str, make: Callable[[str], None]
) -> None:
    write(directory, "stop", "old", new_trailers())
    old = found(directory, "stop")
    os.unlink(old.path)
    make(old.path)
    assert not clear(old)
    assert os.listdir(directory) == [".stop"]


def test_an_odd_thing_that_was_replaced_by_another_is_newer(directory: str) -> None:
    path = path_of(directory, "stop")
    os.symlink("one", path)
    old = found(directory, "stop")
    os.symlink("another", path + "-new")
    os.rename(path + "-new", path)
    assert not clear(old)
    assert os.readlink(path) == "another"


def test_where_hard_links_cannot_be_made_a_newer_signal_is_put_back_and_never_over_one_newer_still(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: str, *_: object, src_dir_fd: int, **__: object) -> None:
        os.lstat(source, dir_fd=src_dir_fd)  # as the kernel does: what is missing is missed first
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    write(directory, "stop", "old", new_trailers())
    old = found(directory, "stop")
    write(directory, "stop", "new", new_trailers())
    assert not clear(old)
    assert found(directory, "stop").reason == "new"

    os.rename(path_of(directory, "stop"), path_of(directory, "stop") + ".taken")
    write(directory, "stop", "newer still", new_trailers())
    recover(directory)
    assert found(directory, "stop").reason == "newer still"
    assert os.listdir(directory) == [".stop"]


def test_a_signal_left_aside_is_put_back_by_recover_and_by_the_next_clear(directory: str) -> None:
    path = path_of(directory, "abort")
    write(directory, "abort", "why", new_trailers())
    signal = found(directory, "abort")
    os.rename(path, path + ".taken")
    recover(directory)
    assert found(directory, "abort") == signal
    os.rename(path, path + ".taken")
    assert clear(signal)
    assert os.listdir(directory) == []


def test_a_stranger_who_holds_a_lock_on_the_directory_delays_a_clear_but_cannot_prevent_it(directory: str) -> None:
    write(directory, "stop", "why", new_trailers())
    with Locked(directory):
        assert promptly(clear, found(directory, "stop"))
    assert os.listdir(directory) == []


def test_no_descriptor_is_left_open(directory: str) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for _ in range(20):
        write(directory, "stop", "why", new_trailers())
        assert clear(found(directory, "stop"))
        recover(directory)
        with pytest.raises(SignalError):
            write(directory + "/missing", "stop", "why", new_trailers())
    assert before is None or len(os.listdir("/proc/self/fd")) <= before


def test_a_signal_that_was_read_before_its_content_came_is_still_that_signal(tmp_path: Path) -> None:
    path = tmp_path / ".stop"
    path.touch()
    early = files.read(str(tmp_path), "stop")
    assert early is not None
    with path.open("a") as file:  # as a shell does between `>` and the end of `echo`
        file.write("tests are red\n")
    late = files.with_late_content(early)
    assert late.reason == "tests are red"
    assert files.clear(late)
    assert not path.exists()


def test_a_signal_that_was_replaced_since_it_was_read_is_another(tmp_path: Path) -> None:
    path = tmp_path / ".stop"
    path.touch()
    early = files.read(str(tmp_path), "stop")
    assert early is not None
    (tmp_path / "new").write_text("newer\n")
    (tmp_path / "new").rename(path)
    assert files.with_late_content(early) is early
    assert not files.clear(early)
    assert path.exists()


@pytest.fixture(params=["/proc", "F_GETPATH"])
def _naming(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the kernel is asked for the name of an open directory: Linux's way, and macOS's, which is told by Linux's."""
    if request.param == "/proc":
        return
    number, names, control = 50, os.readlink, fcntl.fcntl

    def no_proc(path: str, **_: object) -> str:
        raise FileNotFoundError(path)

    def told(file: int, command: int, argument: bytes = b"") -> object:
        if command != number:
            return control(file, command, argument)
        return os.fsencode(names(f"/proc/self/fd/{file}")).ljust(len(argument), b"\0")

    monkeypatch.setattr(os, "readlink", no_proc)
    monkeypatch.setattr(fcntl, "F_GETPATH", number, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", told)


@pytest.mark.usefixtures("_naming")
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="there is no /proc to tell it by")
def test_a_directory_is_inside_of_a_project_however_the_project_is_spelt(tmp_path: Path) -> None:
    """On a disk that does not tell upper case from lower, one directory has several names."""
    (tmp_path / "project" / "ws").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "Project").symlink_to("project")
    workspace = str(tmp_path / "project" / "ws")
    write(workspace, "stop", "why", new_trailers(), inside=str(tmp_path / "Project"))
    assert found(workspace, "stop").reason == "why"
    with pytest.raises(SignalError, match="leads outside the project"):
        write(str(tmp_path / "elsewhere"), "stop", "why", new_trailers(), inside=str(tmp_path / "Project"))


def test_a_symbolic_link_left_aside_is_put_back_as_a_link(directory: str) -> None:
    os.symlink("nowhere", path_of(directory, "stop") + ".taken")
    recover(directory)
    assert os.readlink(path_of(directory, "stop")) == "nowhere"
    assert os.listdir(directory) == [".stop"]
