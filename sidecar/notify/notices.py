"""What of a run is worth telling to somebody who does not watch it, and in which words."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sidecar.model import events as kinds
from sidecar.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.model.events import RunEvent

GRAVE = ("failed", "aborted", "waiting")  # somebody has to do something
_SLIGHT = ("started", "milestone")
_ENDS = frozenset({"stopped", "aborted", "failed", "completed"})
_LONGEST = 1000
_LISTED = 10


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell."""

    event: str  # started, waiting, stopped, aborted, failed, completed or milestone
    run_id: str
    at: float
    title: str
    text: str = ""
    done: int = 0  # of a milestone: the iterations that are over

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    @property
    def weight(self) -> int:
        """1: somebody has to do something; -1: nobody would miss it."""
        return 1 if self.event in GRAVE else -1 if self.event in _SLIGHT else 0


class Reader:
    """Makes notices of events. Of a workflow's loops, only the outermost has milestones."""

    def __init__(self) -> None:
        self._outermost: dict[str, str] = {}  # loops, by run

    def read(self, event: RunEvent) -> Notice | None:
        """What to tell of an event; None of most."""
        if event.kind == kinds.STEP_STARTED:
            self._place(event)
            return None
        tell = _TELLERS.get(event.kind)
        found = tell(self, event) if tell is not None else None
        if found is None:
            return None
        name, title, text, done = found
        return Notice(name, event.run_id, event.at, _clean(title), _clean(text), done)

    def _place(self, event: RunEvent) -> None:
        """A loop is told by its id only. A step's key has the loops around it: `outer[2]/inner[0]/step`."""
        words = str(event.data.get("step", "")).split("/")
        loop = next((word.partition("[")[0] for word in words if word.endswith("]")), None)
        if loop is not None and not event.data.get("task"):
            self._outermost[event.run_id] = loop

    def _started(self, event: RunEvent) -> _Told | None:
        resumed = event.kind == kinds.RUN_RESUMED
        return "started", "resumed" if resumed else "started", "", 0

    def _ended(self, event: RunEvent) -> _Told | None:
        self._outermost.pop(event.run_id, None)
        status, reason = str(event.data.get("status")), event.data.get("reason")
        if status not in _ENDS:  # paused: the question was told; interrupted: by whoever sits there, or to be resumed
            return None
        lines = [str(reason)] if reason and reason != status else []
        if status != "completed":
            lines.append(f"To go on: sidecar resume {event.run_id}")
        return status, status, "\n".join(lines), 0

    def _question(self, event: RunEvent) -> _Told | None:
        text = f"{event.data.get('prompt', '')}\nTo answer: sidecar answer {event.run_id} VALUE"
        return "waiting", "waits for an answer", text, 0

    def _gate(self, event: RunEvent) -> _Told | None:
        stage = event.data.get("stage") or event.data.get("kind", "")
        text = f"To go on: sidecar resume {event.run_id} --approve, or --feedback TEXT to send it back"
        return "waiting", f"waits for approval of {stage}", text, 0

    def _iteration(self, event: RunEvent) -> _Told | None:
        number, of, loop = event.data.get("iteration"), event.data.get("of"), str(event.data.get("step"))
        if event.data.get("task") or self._outermost.setdefault(event.run_id, loop) != loop:
            return None
        if not isinstance(number, int) or number < 2:
            return None
        done = number - 1  # this one only begins
        return "milestone", f"{done} {'iteration' if done == 1 else 'iterations'} done", f"of {of}" if of else "", done


def summed(notices: Sequence[Notice], left_out: int = 0) -> Notice:
    """Several as one, with the weight of the gravest."""
    if len(notices) == 1 and not left_out:
        return notices[0]
    counts = Counter(notice.event for notice in notices)
    title = ", ".join(f"{count} {name}" for name, count in counts.items())
    more = len(notices) - _LISTED + left_out
    lines = [notice.title for notice in notices[:_LISTED]] + ([f"and {more} more"] if more > 0 else [])
    first = max(notices, key=lambda notice: notice.weight)
    return Notice(first.event, first.run_id, first.at, f"{len(notices) + left_out} notices: {title}", "\n".join(lines))


def _clean(text: str) -> str:
    """Without anything that a terminal, a header or a desktop would obey."""
    kept = printable(text, keep="\n")
    return kept if len(kept) <= _LONGEST else kept[: _LONGEST - 1] + "…"


if TYPE_CHECKING:
    _Told = tuple[str, str, str, int]  # which event, title, text, iterations done

_TELLERS: dict[str, Callable[[Reader, RunEvent], _Told | None]] = {
    kinds.RUN_STARTED: Reader._started,
    kinds.RUN_RESUMED: Reader._started,
    kinds.RUN_ENDED: Reader._ended,
    kinds.QUESTION: Reader._question,
    kinds.GATE: Reader._gate,
    kinds.ITERATION: Reader._iteration,
}
