"""`sidecar flow run` at a terminal: questions, and the key `s`."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.acceptance.runs.conftest import Flows

# Opens its terminal again, which makes it the one that controls the new session, and becomes the command.
ON_A_TERMINAL = "import os, sys; os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


class Sitting:
    """The command on a terminal of its own."""

    def __init__(self, flows: Flows, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        self.screen = ""
        command = os.path.join(os.path.dirname(sys.executable), "sidecar")
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, command, *arguments],
            cwd=flows.root,
            env={**flows.environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.screen:
            assert self._reads(deadline), f"{text!r} never came: {self.screen}"

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def end(self) -> int:
        deadline = time.monotonic() + 60
        while self._reads(deadline):
            pass
        os.close(self.master)
        return self.process.wait(timeout=60)

    def _reads(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], max(deadline - time.monotonic(), 0))
        try:
            data = os.read(self.master, 4096) if ready else b""
        except OSError:  # as Linux tells that nobody holds the other end any more
            return False
        self.screen += data.decode()
        return bool(data)


def test_at_a_terminal_a_question_is_asked_there_until_the_answer_is_right(flows: Flows) -> None:
    flows.workflow(
        "asking",
        {
            "id": "ask",
            "type": "user_input",
            "prompt": "How many {{ inputs.things }}?",
            "answer_type": "integer",
            "state_update": {"path": "raw.count"},
        },
        {"id": "tell", "type": "user_message", "message": "{{ count }} it is"},
        inputs={"things": {"type": "string", "required": True, "choices": ["cups", "spoons"]}},
        state_schema={"raw": {"count": "number"}},
    )
    sitting = Sitting(flows, "flow", "asking", "-i")
    sitting.read_until("one of: cups, spoons")
    sitting.type("forks\n")
    sitting.read_until("! has to be one of cups, spoons")
    sitting.type("cups\n")
    sitting.read_until("How many cups?: ")
    sitting.type("several\n")
    sitting.read_until("! has to be a whole number")
    sitting.type("4\n")
    sitting.read_until("4 it is")
    assert sitting.end() == 0


def test_the_key_s_stops_the_run_after_the_iteration(flows: Flows) -> None:
    sitting = Sitting(flows, "flow", "run", "counting")
    flows.wait_for("at-0")
    flows.until(lambda: not _echoes(sitting.master))  # now it listens to single keys
    sitting.type("s")
    sitting.read_until("Press 's' to cancel")
    flows.touch("go")
    assert sitting.end() == 0
    assert (flows.runs()[0].status, flows.lines("ran")) == ("stopped", ["0"])


def test_without_a_terminal_interactive_says_what_is_missing(flows: Flows) -> None:
    flows.workflow("asking", {"type": "user_message", "message": "hi"}, inputs={"what": {"required": True}})
    code, _, err = flows.run("flow", "asking", "-i")
    assert code == 2
    assert "what missing, and no terminal to ask at" in err


def _echoes(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
