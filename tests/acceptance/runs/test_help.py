"""Help and lists on a terminal of eighty columns: nothing is broken inside of a word."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from typing import TYPE_CHECKING

import pytest

from tests.kit.commands import COMMANDS

if TYPE_CHECKING:
    from tests.kit import Project

LONG = "Does one thing after the other, and then some more things, which take many words to tell, one by one."


def on_a_terminal(flows: Project, *arguments: str) -> list[str]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = flows.start(*arguments, stdout=slave)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:  # as Linux tells that nobody holds the other end any more
        pass
    os.close(master)
    assert process.wait(timeout=120) == 0
    assert process.stderr is not None
    process.stderr.close()
    return shown.decode().splitlines()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in ("stop", "abort")])
def test_the_help_of_every_command_fits(flows: Project, command: str) -> None:
    flows.environment["COLUMNS"] = "80"
    code, out, err = flows.run(command, "--help")
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if len(line) > 80 and not line.startswith("usage:")] == []


@pytest.mark.parametrize("arguments", [["--help"], ["flow", "list"], ["flow", "list", "-v"], ["agent", "list"]])
def test_lists_are_broken_between_words_and_go_on_below_what_they_tell(flows: Project, arguments: list[str]) -> None:
    flows.workflow("talkative", {"type": "break"}, description=LONG, inputs={"a": {"description": LONG}})
    lines = on_a_terminal(flows, *arguments)
    assert max(map(len, lines)) < 80
    words = {word.strip("().,;:…'`") for word in " ".join(lines).split()}
    if "agent" not in arguments:
        assert {"talkative", "Does", "some"} <= words
    code, out, _ = flows.run(*arguments)  # not for programs, which read by the line
    assert code == 0
    unbroken = {word.strip("().,;:…'`") for word in out.split()}
    assert words == unbroken


def test_a_pipe_gets_each_entry_as_one_line(flows: Project) -> None:
    flows.workflow("talkative", {"type": "break"}, description=LONG)
    code, out, _ = flows.run("flow", "list", "--source", "project")
    assert (code, [line for line in out.splitlines() if line.endswith(LONG)]) == (0, [out.splitlines()[1]])
