"""Limits of one agent: fed with evidence of life and of spending, it says which limit is reached, if any.

Pure: the clock is passed in, nothing is measured here and nothing is ended here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sidecar.agents.adapters.events import Resumed, ToolBegan, ToolEnded, Used, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from sidecar.agents.adapters.events import Event
    from sidecar.model.agent import Limits

LimitReason = Literal["timeout", "stall", "budget"]

# What a tree has to use of one core to count as busy. Not zero: claude, codex and gemini, waiting for a model that
# never answers, were seen to use 0.3 to 1.3 % for their timers, and would never count as stalled.
BUSY_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Reached:
    """A limit that is reached: the reason to end the agent with, and a sentence for people."""

    reason: LimitReason
    message: str


class LimitWatch:
    """Feed it as evidence comes in, then ask. Where nothing is limited it never says anything.

    Any evidence counts as life: output, tool activity, a busy tree, a change in the workspace. An agent that waits
    for a permission, or for a moment that was told, is not stalled, however long that takes; its wall-clock time runs.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock  # seconds, monotonic
        self._started = self._alive_at = self._cpu_at = clock()
        self._cpu_s = 0.0
        self._files: object = None
        self._waits_for_permission = False
        self._cost_usd = 0.0
        self._tokens = 0

    def hear(self, event: Event, epoch_s: float) -> None:
        """What an adapter read out of the output; `epoch_s` is now, on the clock of `Waiting.until`."""
        match event:
            case Waiting(what="permission"):
                self.waits_for_permission()
            case Waiting(until=until) if until is not None:
                self.waits_for_moment(until - epoch_s)
            case Waiting() | Resumed():  # a wait without a known end: silence counts
                self.goes_on()
            case ToolBegan() | ToolEnded():
                self.tool_activity()
            case Used(tokens=tokens, cost_usd=cost_usd):
                self.spent(tokens.total, cost_usd)

    def output(self, count_bytes: int) -> None:
        """The agent printed something, to either stream."""
        if count_bytes > 0:
            self._live()

    def tool_activity(self) -> None:
        """A tool call began, went on or ended."""
        self._live()

    def cpu(self, total_s: float) -> None:
        """CPU time of the whole tree since its start, as a look at the process table has it."""
        now = self._clock()
        used, passed = total_s - self._cpu_s, now - self._cpu_at
        # Less than before: processes have ended and took their time along. An idle tree does not do that.
        if used < 0 or (used > 0 and used >= BUSY_SHARE * passed):
            self._live()
        self._cpu_s, self._cpu_at = total_s, now

    def files(self, token: object) -> None:
        """Something that differs when a file in the workspace has changed."""
        if token != self._files:
            self._files = token
            self._live()

    def waits_for_permission(self) -> None:
        """The agent waits for a person."""
        self._waits_for_permission = True

    def waits_for_moment(self, remaining_s: float) -> None:
        """The agent waits for a moment that was told, such as the end of a rate limit."""
        self._waits_for_permission = False
        # Only then does its silence begin to mean something.
        self._alive_at = max(self._alive_at, self._clock() + max(0.0, remaining_s))

    def goes_on(self) -> None:
        """The agent no longer waits."""
        self._waits_for_permission = False
        self._alive_at = self._clock()

    def spent(self, tokens: int, cost_usd: float | None) -> None:
        """Totals so far; a cost of None was not told."""
        self._tokens = tokens
        self._cost_usd = self._cost_usd if cost_usd is None else cost_usd

    def reached(self) -> Reached | None:
        """The limit that is reached now. Money goes first: a budget is the one that cannot be given back."""
        limits, now = self._limits, self._clock()
        if limits.max_cost_usd is not None and self._cost_usd >= limits.max_cost_usd:
            return Reached("budget", f"cost ${self._cost_usd:.4f} of at most ${limits.max_cost_usd:.4f}")
        if limits.max_tokens is not None and self._tokens >= limits.max_tokens:
            return Reached("budget", f"used {self._tokens} of at most {limits.max_tokens} tokens")
        if limits.timeout_s is not None and now - self._started >= limits.timeout_s:
            return Reached("timeout", f"ran for {limits.timeout_s:g} s, its timeout")
        idle_s = limits.idle_timeout_s
        if idle_s is not None and not self._waits_for_permission and now - self._alive_at >= idle_s:
            return Reached("stall", f"no output, tool activity, CPU use or file change for {idle_s:g} s")
        return None

    def next_look_s(self) -> float | None:
        """How long from now nothing can be reached by the passing of time alone; None: for ever."""
        limits, now = self._limits, self._clock()
        ends = []
        if limits.timeout_s is not None:
            ends.append(self._started + limits.timeout_s)
        if limits.idle_timeout_s is not None and not self._waits_for_permission:
            ends.append(self._alive_at + limits.idle_timeout_s)
        return max(0.0, min(ends) - now) if ends else None

    def _live(self) -> None:
        # A told moment may lie ahead: life before it must not shorten the wait.
        self._alive_at = max(self._alive_at, self._clock())
