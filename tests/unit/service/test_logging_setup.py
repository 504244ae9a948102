"""What a long-lived process says, in the form that its reader wants."""

from __future__ import annotations

import json
import logging
import os
import pty
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from sidecar.model import events as kinds
from sidecar.model.events import RunEvent
from sidecar.service import logging_setup

logger = logging.getLogger("sidecar.test")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("sidecar")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        yield read, stream
    os.close(read)


def lines(read: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in os.read(read, 65536).decode().splitlines()]


def test_a_program_reads_a_line_of_json_for_each(pipe: tuple[int, TextIO]) -> None:
    read, stream = pipe
    logging_setup.set_up(stream, "info", {})
    logger.info("it runs", extra={"fields": {"run_id": "R"}})
    logger.debug("not this")
    logging.getLogger("library").info("nor this")
    try:
        raise ValueError("why\nso")
    except ValueError:
        logger.exception("it\nfailed")
    first, second = lines(read)
    assert first | {"level": "info", "message": "it runs", "run_id": "R", "logger": "sidecar.test"} == first
    assert (second["level"], second["message"]) == ("error", "it\nfailed")
    assert "ValueError: why\nso" in str(second["exception"])


@pytest.mark.parametrize(("level", "told"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_says_how_much_is_told(pipe: tuple[int, TextIO], level: str, told: int) -> None:
    read, stream = pipe
    logging_setup.set_up(stream, level, {})
    for say in (logger.debug, logger.info, logger.warning, logger.error):
        say("this")
    assert len(lines(read)) == told


def test_a_person_reads_plain_lines() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        logging_setup.set_up(stream, "info", {})
        logger.info("it runs", extra={"fields": {"run_id": "R"}})
        assert os.read(ours, 1024) == b"sidecar: it runs\r\n"
    os.close(ours)


def test_no_secret_is_told_neither_in_a_message_nor_in_a_trace(pipe: tuple[int, TextIO]) -> None:
    read, stream = pipe
    logging_setup.set_up(stream, "info", {}, ["sk-secret"])
    try:
        raise ValueError("with sk-secret")
    except ValueError:
        logger.exception("it is %s", "sk-secret")
    (told,) = lines(read)
    assert "sk-secret" not in json.dumps(told)
    assert told["message"] == "it is ********"
    assert "with ********" in str(told["exception"])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    path = str(tmp_path / "journal")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        yield path, listening


def as_journald_reads(data: bytes) -> dict[str, str]:
    found = {}
    while data:
        line, _, rest = data.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            length = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + length], rest[9 + length :]
        found[name.decode()] = value.decode()
        data = rest
    return found


def connected_to_journald(stream: TextIO) -> dict[str, str]:
    found = os.fstat(stream.fileno())
    return {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}


def test_journald_gets_fields(pipe: tuple[int, TextIO], journal: tuple[str, socket.socket]) -> None:
    path, listening = journal
    logging_setup.set_up(pipe[1], "info", connected_to_journald(pipe[1]), journal=path)
    logger.warning("two\nlines", extra={"fields": {"run_id": "R", "project": "/p"}})
    told = as_journald_reads(listening.recv(65536))
    expected = {"MESSAGE": "two\nlines", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "sidecar"}
    assert told | expected | {"SIDECAR_RUN_ID": "R", "SIDECAR_PROJECT": "/p"} == told


def test_where_journald_is_away_its_stream_is_still_there(pipe: tuple[int, TextIO], tmp_path: Path) -> None:
    logging_setup.set_up(pipe[1], "info", connected_to_journald(pipe[1]), journal=str(tmp_path / "nobody"))
    logger.info("it runs")
    assert os.read(pipe[0], 1024) == b"sidecar: it runs\n"


def test_runs_are_logged_with_their_ids_and_without_what_anybody_wrote(pipe: tuple[int, TextIO]) -> None:
    read, stream = pipe
    logging_setup.set_up(stream, "info", {})
    hear = logging_setup.following("/p")
    written = "what somebody wrote"
    hear(RunEvent("R", kinds.RUN_STARTED, 1.0, {"workflow": "w"}))
    hear(RunEvent("R", kinds.MESSAGE, 1.0, {"text": written}))
    hear(RunEvent("R", kinds.SIGNAL, 1.0, {"signal": "stop", "reason": written}))
    hear(RunEvent("R", kinds.AGENT_ENDED, 1.0, {"survivors": 2, "pid": 7, "name": written}))
    hear(RunEvent("R", kinds.RUN_ENDED, 1.0, {"status": "failed", "reason": written}))
    told = lines(read)
    assert [(one["level"], one["message"]) for one in told] == [
        ("info", "run R (w): started"),
        ("info", "run R (w): stop requested"),
        ("error", "run R (w): 2 processes survived the end of their agent, pid 7"),
        ("warning", "run R (w): failed"),
    ]
    assert all(one["run_id"] == "R" and one["project"] == "/p" for one in told)
    assert written not in json.dumps(told)


def test_what_is_logged_again_and_again_is_told_once_and_then_counted(
    pipe: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, stream = pipe
    logging_setup.set_up(stream, "info", {}, ["sk-secret"])
    library = logging.getLogger("library")
    for _ in range(100):
        library.warning("no room for %s", "sk-secret")
        try:
            raise OSError("full")
        except OSError:
            logger.exception("it failed")
        logger.info("as often as it happens")
    told = [line["message"] for line in lines(read)]
    assert [told.count(one) for one in ("no room for ********", "it failed", "as often as it happens")] == [1, 1, 100]
    monkeypatch.setattr(logging_setup, "_REPEATED_S", 0.0)
    logger.info("later")
    assert [line["message"] for line in lines(read)] == [
        "no room for ******** (99 more times in the last 0 s)",
        "it failed (99 more times in the last 0 s)",
        "later",
    ]


def test_a_variable_that_was_inherited_does_not_make_a_file_the_journal(pipe: tuple[int, TextIO]) -> None:
    logging_setup.set_up(pipe[1], "info", {"JOURNAL_STREAM": "1:2"})
    logger.info("it runs")
    assert lines(pipe[0])[0]["message"] == "it runs"
