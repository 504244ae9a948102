"""The signal check between steps: the files are asked, whatever a watcher did or did not say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sidecar.engine.ending import Ending, RunEnds
from sidecar.model.steps import AgentStep, ApplyHints, Exit
from sidecar.model.steps_control import Break, Conditional, Continue, Loop
from sidecar.signals import trailers

if TYPE_CHECKING:
    from typing import Literal

    from sidecar.engine.record.image import Image
    from sidecar.model.steps import StepBase
    from sidecar.model.workflow import RunLimits
    from sidecar.signals.board import Board, Request, Subject

_UNCOUNTED = (Conditional, Loop, Break, Continue, Exit)  # they only say what is next


class Gate:
    """What stands between two steps of a run: signals, and the limits of its workflow."""

    def __init__(self, board: Board, image: Image, limits: RunLimits) -> None:
        self.board = board
        self._image = image
        self._limits = limits
        self._since = time.monotonic()

    def check(self, kind: Literal["abort-only", "stop-and-abort"]) -> None:
        """Nothing, or RunEnds: the run ends here."""
        if self.board.glance():
            self.board.look()
            if self.board.abort is not None:
                raise RunEnds(self._by(self.board.abort))
            if kind == "stop-and-abort" and self.board.stop is not None:
                raise RunEnds(self._by(self.board.stop))

    def stop_asked(self) -> bool:
        """Whether no further task is to be started; RunEnds after an abort."""
        if not self.board.glance():
            return False
        self.board.look()
        if self.board.abort is not None:
            raise RunEnds(self._by(self.board.abort))
        return self.board.stop is not None

    def stopped(self) -> RunEnds:
        """The end at a stop that was asked for."""
        assert self.board.stop is not None
        return RunEnds(self._by(self.board.stop))

    def aborted(self) -> Ending:
        """The end by an abort that was seen."""
        assert self.board.abort is not None
        return self._by(self.board.abort)

    def tick(self) -> None:
        """Count the time that has passed."""
        now = time.monotonic()
        self._image.counters.duration_s += now - self._since
        self._since = now

    def keep_limits(self, step: StepBase | None = None, *, iterates: bool = False) -> None:
        """RunEnds where one is reached that the next step would exceed. Without a step: an agent does a whole task."""
        self.tick()
        image, limits = self._image, self._limits
        by_agent = step is None or isinstance(step, AgentStep | ApplyHints)
        counts = step is not None and not iterates and not isinstance(step, _UNCOUNTED)
        if counts and limits.max_transitions is not None:
            _keep("max_transitions", _number(limits.max_transitions), image.transitions, "steps")
        if iterates and limits.max_iterations is not None:
            _keep("max_iterations", _number(limits.max_iterations), image.iterations, "iterations")
        if by_agent and limits.max_cost_usd is not None:
            _keep("max_cost_usd", limits.max_cost_usd, image.counters.cost_usd, "USD")
        if limits.max_duration_s is not None:
            _keep("max_duration", _number(limits.max_duration_s), image.counters.duration_s, "s")

    def time_left_s(self) -> float | None:
        """How long the run may still work; None: no limit."""
        most = self._limits.max_duration_s
        return None if most is None else max(_number(most) - self._image.counters.duration_s, 0.0)

    def out_of_time(self) -> Ending:
        """The end at the limit of its time."""
        return _reached("max_duration", _number(self._limits.max_duration_s or 0.0), "s")

    def cost_left_usd(self) -> float | None:
        """What agents may still cost; None: no limit."""
        most = self._limits.max_cost_usd
        return None if most is None else max(most - self._image.counters.cost_usd, 0.0)

    def _by(self, request: Request) -> Ending:
        return ending_by(request, self.board.subject)


def ending_by(request: Request, subject: Subject) -> Ending:
    """How a run ends by a signal. One that stood there at its beginning is explained."""
    status: Literal["aborted", "stopped"] = "aborted" if request.kind == "abort" else "stopped"
    reason = request.reason
    if request.signal is not None and request.signal.occurrence in subject.standing:
        since = trailers.timestamp(request.since)
        reason = (
            f"{request.signal.path} was there before the first step, since {since} ({request.reason}); it is "
            "gone now. To prevent this, take a stop back with `sidecar stop --cancel`, or delete the file"
        )
    return Ending(status, reason, request=request)


def _keep(name: str, most: float, now: float, unit: str) -> None:
    if now >= most:
        raise RunEnds(_reached(name, most, unit))


def _reached(name: str, most: float, unit: str) -> Ending:
    return Ending("failed", f"the limit {name} of the workflow is reached: {most:g} {unit}", limit=name)


def _number(limit: float | str) -> float:
    """A limit; those with templates were evaluated before."""
    assert not isinstance(limit, str)
    return limit
