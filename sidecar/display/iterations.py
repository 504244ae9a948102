"""The iterations of one loop: how many are over, how long they took, and how long the rest may take."""

from __future__ import annotations

from collections import deque

_FOR_ESTIMATE = 5


class Iterations:
    """One loop, from its first iteration that we saw; `id` is its step's."""

    def __init__(self, id: str) -> None:  # noqa: A002 - a step's id is called so everywhere
        self.id = id
        self.number = 0  # of the one that is under way
        self.of: int | None = None
        self._began_at: float | None = None
        self._last: deque[float] = deque(maxlen=_FOR_ESTIMATE)
        self._timed = 0
        self._total_s = 0.0
        self.is_over = False

    def begin(self, number: int, of: int | None, at: float) -> None:
        """An iteration begins, so the one before it is over."""
        if number > self.number and self.number:
            self._time(at)
        self.number, self.of = number, self.of if of is None else of
        self._began_at, self.is_over = at, False

    def end(self, at: float) -> None:
        """The loop is over, its last iteration complete."""
        if self.number and not self.is_over:
            self._time(at)
            self.is_over = True

    def interrupt(self) -> None:
        """The time of the present iteration says nothing any more: it was cut off, or the run did not go on."""
        self._began_at = None

    @property
    def done(self) -> int:
        """How many are over, those before a resume included."""
        return self.number if self.is_over else max(0, self.number - 1)

    @property
    def average_s(self) -> float | None:
        """Over all that were timed."""
        return self._total_s / self._timed if self._timed else None

    def left_s(self, now: float) -> float | None:
        """How long the rest takes if it goes on like the last five; None before there are five, or without an end."""
        if self.of is None or self.is_over or len(self._last) < _FOR_ESTIMATE:
            return None
        each_s = sum(self._last) / len(self._last)
        spent_s = 0.0 if self._began_at is None else max(0.0, now - self._began_at)
        return max(0, self.of - self.done) * each_s - min(spent_s, each_s)

    def _time(self, at: float) -> None:
        if self._began_at is None:
            return
        took_s = max(0.0, at - self._began_at)
        self._last.append(took_s)
        self._total_s += took_s
        self._timed += 1


def outermost(key: str) -> tuple[str, int] | None:
    """The outermost loop around a step, by the step's key, and which of its iterations that is, counted from 1."""
    for word in key.split("/"):
        name, bracket, index = word.rpartition("[")
        if bracket and index.removesuffix("]").isdecimal():
            return name, int(index.removesuffix("]")) + 1
    return None
