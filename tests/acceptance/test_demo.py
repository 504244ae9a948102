"""`sidecar demo`: everything that it shows really happens, and nothing of it is left."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import psutil
import pytest

from tests.kit import SIDECAR, Forked

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).parents[2]
STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Demo:
    """The demo in its own temporary directory; all that it starts carries a tag."""

    def __init__(self, directory: Path) -> None:
        self.tag = uuid.uuid4().hex
        self.directory = directory
        self.environment = {**os.environ, "TMPDIR": str(directory), "TEST_TAG": self.tag, "TERM": "xterm"}
        self.environment.pop("NO_COLOR", None)

    def start(self, output: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.PIPE}
        return Forked([SIDECAR, "demo"], Path.cwd(), self.environment, **streams)

    def left(self) -> list[str]:
        """What is there now that was not there before."""
        processes = [process for process in psutil.process_iter() if self.tag in _tag(process)]
        return [*map(str, processes), *map(str, self.directory.rglob("*"))]


def _tag(process: psutil.Process) -> str:
    try:
        return process.environ().get("TEST_TAG", "")
    except psutil.Error:
        return ""


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    for process in psutil.process_iter():
        if demo.tag in _tag(process):
            process.kill()


def read_terminal(terminal: int, within_s: float = 150) -> str:
    """All that is written to a terminal until nobody has it open any more."""
    deadline = time.monotonic() + within_s
    data = b""
    while select.select([terminal], [], [], max(deadline - time.monotonic(), 0))[0]:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return data.decode()
        if not chunk:
            return data.decode()
        data += chunk
    raise AssertionError(f"it did not end: {data.decode()}")


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """What a process says, up to this text; its end is an end to waiting, too."""
    assert process.stdout is not None
    data = b""
    deadline = time.monotonic() + 60
    while text not in data:
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
        assert ready, data
        chunk = os.read(process.stdout.fileno(), 65536)
        assert chunk, data
        data += chunk
    return data


def test_on_a_terminal_it_shows_a_stop_a_resume_parallel_tasks_and_a_proven_abort_and_leaves_nothing(
    demo: Demo,
) -> None:
    ours, theirs = pty.openpty()
    process = demo.start(theirs)
    os.close(theirs)
    shown = read_terminal(ours)
    os.close(ours)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b""), shown
    assert demo.left() == []
    assert "\x1b[1m" in shown
    text = STYLE.sub("", shown).replace("\r\n", "\n")
    story = [
        "$ sidecar flow run loop",
        "worker | did piece 1",
        "$ touch .swissarmyhammer/workspaces/my-task/.stop",
        "stop requested",
        "worker | did piece 2",
        "| 1: stopped",
        "$ sidecar resume 0",
        "(was: stopped)",
        "worker | did piece 3",
        "worker | did piece 4",
        "| 1: completed",
        "$ sidecar flow run survey",
        "6 measured, the tallest by now is the sequoia",
        "$ sidecar flow run stubborn",
        "ignore SIGTERM",
        '$ sidecar abort "wrong branch" --wait',
        "2 processes ended (both needed SIGKILL); none left",
        "last rung: kill",
        "survivors: 0",
        "none of them is left",
        "none of its processes is left",
    ]
    told = re.sub(r"\| \d\d:\d\d:\d\d (stopped|completed)", r"| 1: \1", text)
    places = [told.find(part) for part in story]
    assert -1 not in places, (story[places.index(-1)], text)
    assert places == sorted(places), text
    assert text.count("worker | did piece 2") == 1
    assert told.rfind("$ touch") < told.find("worker | did piece 2")  # it was at work then, and went on


def test_interrupted_it_ends_what_it_started_and_leaves_nothing(demo: Demo) -> None:
    process = demo.start()
    shown = read_until(process, b"worker: started")
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 130, (rest, errors)
    assert b"nothing of it is left" in errors
    assert demo.left() == []
    assert b"\x1b" not in shown + rest  # no colours into a pipe


def test_a_reader_who_goes_away_ends_it_and_nothing_is_left(demo: Demo) -> None:
    with demo.start() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process, b"iteration 1")
        process.stdout.close()
        errors = process.stderr.read()
        assert (process.wait(120), errors) == (2, b"")
    assert demo.left() == []


def test_what_does_not_go_as_it_should_is_told_in_one_line_and_nothing_is_left(demo: Demo) -> None:
    demo.environment["PATH"] = str(demo.directory)  # no `touch` there
    shown, errors = demo.start().communicate(timeout=120)
    assert errors.count(b"\n") == 1
    assert b"touch" in errors
    assert b"none of its processes is left" not in shown
    assert demo.left() == []


# --- the picture of it


def record(tmp_path: Path, *command: str) -> ElementTree.Element:
    picture = tmp_path / "picture.svg"
    subprocess.run(
        [sys.executable, CHECKOUT / "scripts" / "recording.py", picture, "--size", "40x6", "--", *command],
        check=True,
        timeout=60,
    )
    return ElementTree.parse(picture).getroot()


def texts(picture: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]


def test_a_recording_is_a_picture_of_what_a_terminal_showed(tmp_path: Path) -> None:
    script = 'printf "one <&>\\033[1;32mgreen\\033[0m\\n"; printf "\\033[2Jgone\\rhere"; test -t 1'
    picture = record(tmp_path, "sh", "-c", script)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    shown = texts(picture)
    assert any("here" in text for text in shown)
    assert not any("\x1b" in text for text in shown)


def test_a_recording_that_fails_makes_no_picture(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    result = subprocess.run(
        [sys.executable, CHECKOUT / "scripts" / "recording.py", picture, "--", "sh", "-c", "exit 3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert "ended with 3" in result.stderr
    assert not picture.exists()
