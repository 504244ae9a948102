"""Ends a run at a boundary, between two steps, where its board has a signal for it or a limit is reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sidecar import layout
from sidecar.engine.cursor.actions import Boundary, LimitReached
from sidecar.engine.cursor.position import Error
from sidecar.engine.run import Run
from sidecar.model.agent import EndReason
from sidecar.model.steps import AGENT_STEPS, Fallible, StepBase
from sidecar.model.workflow import RunLimits
from sidecar.signals import files, run_lock
from sidecar.signals.board import Board, Request, SignalScope
from sidecar.store.journal import Ending as Status
from sidecar.store.journal import StoredRun

if TYPE_CHECKING:
    from sidecar.engine.owner import Owner  # `status` imports this module, and needs no evaluator or supervisor

NOTED_STOP = "noted_stop"  # in a run's details: a stop whose file did not wait for the step that an agent has in hand


@dataclass(frozen=True, slots=True)
class Ending:
    """How one execution of a run ends."""

    status: Status
    reason: str = ""
    limit: str | None = None  # the limit that was reached
    request: Request | None = None  # the signal that is consumed with it
    error: Error | None = None  # what the steps for a failure see
    waits: dict[str, Any] | None = None  # for a person: a question, or a stage that was submitted
    executed: bool = True  # False: nothing was executed, because the run had ended, or a signal was there, before

    @property
    def end_reason(self) -> EndReason:
        """Why the processes of the run are ended with it."""
        if self.limit:
            return "budget"
        return "abort" if self.status == "aborted" else "shutdown"


class RunEnds(Exception):  # noqa: N818 - not an error
    """The run ends here. The interpreter raises it between steps, so no handler of a step sees it."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class BoundaryGuard:
    """Checks the signals and the limits of one run."""

    def __init__(self, board: Board, run: Run, limits: RunLimits) -> None:
        self.board = board
        self._run = run
        self._limits = limits
        self._since = time.monotonic()

    def pass_boundary(self, action: Boundary, *, iterates: bool, limited: bool) -> None:
        """RunEnds where the run ends before the next step: after an abort, after a stop where the boundary takes one,
        and, `limited`, where the step would exceed a limit. Signals come first."""
        exceeded = self._exceeded(action.step, iterates=iterates) if limited else None
        if self.stop_requested() and action.kind == "stop-and-abort":
            raise self.stopped()
        if exceeded is not None:
            raise RunEnds(exceeded)

    # --- signals

    def stop_requested(self) -> bool:
        """Whether a stop is requested; RunEnds after an abort. Reads the files: a watcher may have missed a change."""
        if not self.board.any_present():
            return False
        self.board.refresh()
        request = self.board.request
        if request is not None and request.kind == "abort":
            raise RunEnds(self.aborted())
        return request is not None

    def stopped(self) -> RunEnds:
        """The end by the stop that is requested."""
        assert self.board.stop is not None
        return RunEnds(ending_by(self.board.stop, self.board.scope))

    def aborted(self) -> Ending:
        """The end by the abort that is requested."""
        assert self.board.abort is not None
        return ending_by(self.board.abort, self.board.scope)

    # --- limits

    def check_limits(self, step: StepBase | None = None) -> None:
        """RunEnds where a step would exceed a limit. Without a step: an agent is about to do a whole task."""
        exceeded = self._exceeded(step)
        if exceeded is not None:
            raise RunEnds(exceeded)

    def _exceeded(self, step: StepBase | None, *, iterates: bool = False) -> Ending | None:
        self.tick()
        run, limits, by_agent = self._run, self._limits, step is None or isinstance(step, AGENT_STEPS)
        ending = None
        if isinstance(step, Fallible) and limits.max_transitions is not None:
            ending = _exceeded("max_transitions", limits.max_transitions, run.transitions, "steps")
        if iterates and limits.max_iterations is not None:
            ending = ending or _exceeded("max_iterations", limits.max_iterations, run.iterations, "iterations")
        if by_agent and limits.max_cost_usd is not None:
            ending = ending or _exceeded("max_cost_usd", limits.max_cost_usd, run.counters.cost_usd, "USD")
        if limits.max_duration_s is not None:
            ending = ending or _exceeded("max_duration", limits.max_duration_s, run.counters.duration_s, "s")
        return ending

    def tick(self) -> None:
        """Count the time that has passed."""
        now = time.monotonic()
        self._run.counters.duration_s += now - self._since
        self._since = now

    def time_remaining_s(self) -> float | None:
        """How long the run may still take; None: no limit."""
        most = self._limits.max_duration_s
        return None if most is None else max(_number(most) - self._run.counters.duration_s, 0.0)

    def out_of_time(self) -> Ending:
        """The end by `max_duration`."""
        return _reached("max_duration", _number(self._limits.max_duration_s or 0.0), "s")

    def cost_remaining_usd(self) -> float | None:
        """What agents may still cost; None: no limit."""
        most = self._limits.max_cost_usd
        return None if most is None else max(most - self._run.counters.cost_usd, 0.0)


def ending_by(request: Request, subject: SignalScope) -> Ending:
    """How a run ends by a signal. The reason says so where the signal was there before the first step."""
    status: Literal["aborted", "stopped"] = "aborted" if request.kind == "abort" else "stopped"
    reason = request.reason
    if request.signal is not None and request.signal.occurrence in subject.standing:
        since = files.timestamp(request.since)
        reason = (
            f"{request.signal.path} was there before the first step, since {since} ({request.reason}); it is "
            "gone now. To prevent this, cancel a stop with `sidecar stop --cancel`, or delete the file"
        )
    return Ending(status, reason, request=request)


def iterations_exhausted(action: LimitReached) -> Ending:
    """The end of a run whose loop has reached its own `max_iterations`."""
    reason = f"iteration limit ({action.limit}) of step {action.step.id!r} reached"
    return Ending("failed", reason, limit="max_iterations")


def board_of(owner: Owner, stored: StoredRun, report: Callable[[str], None] = lambda _: None) -> Board:
    """What is requested of a run since its last beginning, the stop that was noted for it included."""
    mark = run_lock.mark(owner.root, stored.run_id)
    directories = layout.signal_directories(owner.root, stored.run_id, stored.workspace)
    subject = SignalScope(stored.run_id, directories, mark.standing if mark else frozenset())
    noted, request = stored.details.get(NOTED_STOP), None
    if noted and noted["start"] == stored.start:
        request = Request("stop", noted["reason"], "file", noted["since"], None)
    return Board(subject, taken=owner.journal.signals(stored.run_id), noted=request, report=report)


def _exceeded(name: str, most: float | str, now: float, unit: str) -> Ending | None:
    return _reached(name, _number(most), unit) if now >= _number(most) else None


def _reached(name: str, most: float, unit: str) -> Ending:
    return Ending("failed", f"the limit {name} of the workflow is reached: {most:g} {unit}", limit=name)


def _number(limit: float | str) -> float:
    """A limit; those with templates were evaluated before."""
    assert not isinstance(limit, str)
    return limit
