"""Shows the panel on its terminal and does as it is told: a run whose events and whose clock come from outside.

Commands come in on the descriptor that is the first argument, answers go to the second, both as lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio

from sidecar.display.panel import Panel
from sidecar.display.progress import Progress
from sidecar.model import events as kinds
from sidecar.model.events import RunEvent

RUN_ID = "01JCZ4B5Y0SIDECARSNAPSH0T1"


class Show:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.panel = Panel(Progress(workspace="my-task"), clock=lambda: self.now)
        self.agents = 0

    def tell(self, kind: str, /, **data: Any) -> None:
        self.panel.on_event(RunEvent(RUN_ID, kind, self.now, data))

    def advance(self, seconds_s: float) -> None:
        self.now += seconds_s

    def draw(self) -> None:
        self.panel.beat()

    def sync(self, mark: str) -> None:
        """Everything that was drawn is on the screen when this title is."""
        self.panel.terminal.finish(10)
        os.write(1, f"\033]0;{mark}\007".encode())

    def litter(self, text: str) -> None:
        """What no program should do while a panel is shown."""
        os.write(1, text.encode())

    def repaint(self) -> None:
        self.panel._painted_at = self.panel._drawn_at = float("-inf")
        self.panel.beat()

    def work(self, seconds_s: int, seed: int) -> None:
        """A loop of agents that talk, with everything that terminals dislike, four beats a second."""
        for second in range(seconds_s):
            if second % 10 == 0:
                self._iterate(seed)
            nasty = [
                "\033[31mred\033[0m",
                "日本語 wide",
                "bell\a and \033]0;title\007",
                "10%\r20%",
                "tab\there",
                "é👍🏽e\u0301",
            ]
            said = [f"{seed}.{second} {nasty[(seed + second) % len(nasty)]}"] * (1 + second % 3)
            self.tell(kinds.AGENT_OUTPUT, agent_id=f"a{self.agents}", stream="stdout", lines=said)
            if second % 20 == 7:
                self.tell(kinds.SIGNAL, signal="stop", source="keyboard", reason="requested at the terminal", path="")
            if second % 20 == 12:
                self.tell(kinds.SIGNAL, signal="stop", cancelled=True)
            for _ in range(4):
                self.draw()
                self.now += 0.25

    def _iterate(self, seed: int) -> None:
        self.tell(kinds.AGENT_ENDED, agent_id=f"a{self.agents}")
        self.tell(kinds.USAGE, step="work", cost_usd=0.05, tokens=1200)
        self.agents += 1
        self.tell(kinds.ITERATION, step="loop", iteration=self.agents, of=70)
        self.tell(kinds.STEP_STARTED, step=f"loop[{self.agents - 1}]/work", id="work", type="agent", attempt=1)
        self.tell(kinds.AGENT_STARTED, agent_id=f"a{self.agents}", name="claude", pid=4000 + self.agents)
        if seed % 3 == 0:
            for index in range(5):
                self.tell(kinds.TASK_STARTED, task=f"each.{index}", step="each", batch=self.agents, index=index)
        elif seed % 3 == 1:
            for index in range(5):
                self.tell(kinds.TASK_ENDED, task=f"each.{index}")

    def fail(self) -> None:
        """A task beside the panel raises, as a defect would."""

        async def both() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.panel.run)
                await anyio.lowlevel.checkpoint()
                raise RuntimeError("a defect beside the panel")

        anyio.run(both)

    def spoil(self) -> None:
        """A defect of the panel itself."""
        self.panel._progress.status = "nonsense"  # type: ignore[assignment]

    def close(self) -> None:
        self.panel.close()


def main() -> None:
    show = Show()
    commands, answers = os.fdopen(int(sys.argv[1])), int(sys.argv[2])
    os.write(answers, b'"ready"\n')
    for line in commands:
        name, args, kwargs = json.loads(line)
        getattr(show, name)(*args, **kwargs)
        os.write(answers, (json.dumps(repr(show.panel.problem) if show.panel.problem else "done") + "\n").encode())


main()
