"""What a person sees while an agent works: its words as they come, and on a terminal what it does besides."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from sidecar.agents.adapters.events import Denied, Failed, Said, ToolBegan, Waiting
from sidecar.agents.stream import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.turn import Told
    from sidecar.service import Ended

_DIM, _PLAIN = "\033[2m", "\033[0m"


class Printer:
    """The answer goes to stdout, everything about it to stderr, so that a pipe gets the answer and nothing else."""

    def __init__(self, *, quiet: bool) -> None:
        self.on_lost: Callable[[], None] = lambda: None  # told once, when nobody can read the answer any more
        self.lost: str | None = None
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._dims = self._is_terminal and "NO_COLOR" not in os.environ

    def tell(self, told: Told) -> None:
        """Show one thing."""
        if self._quiet:
            return
        match told:
            case Said(text):
                self.answer(text)
            case Output("stderr", lines):
                _remark("\n".join(lines))
            case ToolBegan(_, name):
                self._aside(f"· {name}")
            case Waiting(what, until):
                self._aside(f"· waits: {what.replace('_', ' ')}" + ("" if until is None else f", until {until:.0f}"))
            case Denied(name):
                self._aside(f"· not permitted: {name}")
            case Failed(message):
                self._aside(f"· {message}")
            case _:
                pass

    def finish(self, ended: Ended) -> None:
        """The last line: how it ended. In quiet mode the answer, whole."""
        outcome = ended.outcome
        if self._quiet and outcome and outcome.summary.text:
            self.answer(outcome.summary.text)
        if self.lost:
            _remark(f"sidecar: failed: the answer cannot be written ({self.lost}); the agent was ended")
            return
        if ended.status != "completed":
            why = f": {ended.reason}" if ended.reason and ended.reason != ended.status else ""
            _remark(f"sidecar: {ended.status}{why}")
        if outcome and outcome.ended.problem:
            _remark(f"sidecar: {outcome.ended.problem}")
        if outcome is None or not self._is_terminal or self._quiet:
            return
        facts = [f"{ended.status} in {outcome.ended.duration_s:.1f} s"]
        if outcome.summary.tokens.total:
            facts.append(f"{outcome.summary.tokens.total:,} tokens")
        if outcome.summary.cost_usd is not None:
            facts.append(f"${outcome.summary.cost_usd:.4f}")
        facts.append(f"run {ended.run_id}")
        self._aside("· " + ", ".join(facts))

    def answer(self, text: str) -> None:
        """To stdout. A reader that went away, as `head` does, or a full disk is the end of the agent, not of us."""
        try:
            print(text, flush=True)
        except OSError as error:
            # The interpreter would write the rest again at its end, and fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
            if self.lost is None:
                self.lost = error.strerror or str(error)
                self.on_lost()

    def _aside(self, text: str) -> None:
        if self._is_terminal:
            _remark(f"{_DIM}{text}{_PLAIN}" if self._dims else text)


def _remark(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # who does not read what is said about the answer still wants the answer
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stderr.fileno())
