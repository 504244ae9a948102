"""How a start of a run ends, and the way there from any depth."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar import layout
from sidecar.engine.run import Run
from sidecar.model.steps import AgentStep, ApplyHints, Exit
from sidecar.model.steps_control import Break, Conditional, Continue, Loop
from sidecar.signals import liveness, trailers
from sidecar.signals.board import Board, Request, Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from sidecar.engine.cursor.position import Error
    from sidecar.engine.owner import Owner
    from sidecar.engine.run import Run
    from sidecar.model.agent import EndReason
    from sidecar.model.steps import StepBase
    from sidecar.model.workflow import RunLimits
    from sidecar.signals.board import Board, Request, Subject
    from sidecar.store.journal import Ending as Status
    from sidecar.store.journal import StoredRun


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ends. `limit`: which one was reached; `request`: the signal that is consumed with it; `executed`: False
    where nothing was done, because the run had ended before, or a signal was written while nobody executed it."""

    status: Status
    reason: str = ""
    limit: str | None = None
    request: Request | None = None
    error: Error | None = None  # what the steps for a failure see
    waits: dict[str, Any] | None = None  # for a person: a question, or a stage that was submitted
    executed: bool = True


class RunEnds(Exception):  # noqa: N818 - not an error
    """The run ends here. No handler sees it: only the interpreter raises it, between steps."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


NOTED_STOP = "noted_stop"  # in a run's details: a stop that did not wait for the step that an agent has in hand


def signal_directories(root: str, run: StoredRun) -> tuple[str, ...]:
    """The directories that govern a run, its own one last."""
    where = [layout.state_directory(root), run.workspace, layout.run_directory(root, run.run_id)]
    return tuple(directory for directory in where if directory)


def subject_of(root: str, run: StoredRun) -> Subject:
    """The run as signals see it, since its last beginning."""
    mark = liveness.mark(root, run.run_id)
    return Subject(run.run_id, signal_directories(root, run), mark.standing if mark else frozenset())


def board_of(owner: Owner, run: StoredRun, report: Callable[[str], None] = lambda _: None) -> Board:
    """What is asked of the run, the stop that was noted for it included."""
    noted = run.details.get(NOTED_STOP)
    request = None
    if noted and noted["start"] == run.start:
        request = Request("stop", noted["reason"], "file", noted["since"], None)
    return Board(subject_of(owner.root, run), taken=owner.journal.signals(run.run_id), noted=request, report=report)


def end_reason(ending: Ending) -> EndReason:
    """Why processes are ended with a run that ends like this."""
    if ending.limit:
        return "budget"
    return "abort" if ending.status == "aborted" else "shutdown"


# The signal check between steps: the files are asked, whatever a watcher did or did not say.


_UNCOUNTED = (Conditional, Loop, Break, Continue, Exit)  # they only say what is next


class Gate:
    """What stands between two steps of a run: signals, and the limits of its workflow."""

    def __init__(self, board: Board, image: Run, limits: RunLimits) -> None:
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
