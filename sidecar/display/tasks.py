"""The tasks of `parallel_foreach`: those that run, those that ended last, and how many there are of each."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Literal

State = Literal["running", "done", "failed", "again"]
_KEPT = 100


@dataclass(slots=True)
class Task:
    """One of them."""

    id: str
    batch: str  # which execution of which `parallel_foreach`
    began_at: float
    state: State = "running"
    ended_at: float | None = None
    doing: str = ""  # its step, or what went wrong

    def lasted_s(self, now: float) -> float:
        """Until its end, or until now."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.began_at)


@dataclass(slots=True)
class _Batch:
    of: int | None = None
    done: int = 0
    failed: int = 0


class Tasks:
    """All tasks of a run. What is over is counted, and only the last of them are kept."""

    def __init__(self) -> None:
        self.running: dict[str, Task] = {}
        self.ended: deque[Task] = deque(maxlen=_KEPT)
        self._batches: dict[str, _Batch] = {}
        self._last_batch = ""
        self._sizes: dict[str, int] = {}  # of lists that may become batches

    def expect(self, step: str, count: int) -> None:
        """A step has so many items; if it has tasks for them, they are a batch."""
        self._sizes[step] = count
        while len(self._sizes) > _KEPT:  # loops have items too, and loops may be long
            del self._sizes[next(iter(self._sizes))]

    def begin(self, task_id: str, batch: str, step: str, at: float) -> None:
        """One is started, or started again. `step` is the one that `expect` was told of."""
        if batch not in self._batches:
            busy = {task.batch for task in self.running.values()}
            self._batches = {key: known for key, known in self._batches.items() if key in busy}
            self._batches[batch] = _Batch(self._sizes.pop(step, None))
            # Rows of an earlier batch would have the same ids.
            self.ended = deque((task for task in self.ended if task.batch in busy), maxlen=_KEPT)
        self._last_batch = batch
        self.running[task_id] = Task(task_id, batch, at)

    def end(self, task_id: str, at: float, error: str | None, *, again: bool) -> None:
        """One is over."""
        task = self.running.pop(task_id, None)
        if task is None:
            return
        task.state = ("again" if again else "failed") if error is not None else "done"
        task.ended_at, task.doing = at, error or ""
        batch = self._batches[task.batch]
        batch.done += task.state == "done"
        batch.failed += task.state == "failed"
        self.ended.append(task)

    def forget_running(self) -> None:
        """The run begins anew: whatever was under way is not."""
        self.running.clear()

    def count(self) -> tuple[int, int, int | None]:
        """Of the batches that are under way (else the last one): how many are over, failed, and there are at all."""
        busy = {task.batch for task in self.running.values()} or {self._last_batch}
        batches = [batch for key, batch in self._batches.items() if key in busy]
        sizes = [batch.of for batch in batches]
        of = None if None in sizes else sum(size for size in sizes if size is not None)
        failed = sum(batch.failed for batch in batches)
        return sum(batch.done for batch in batches) + failed, failed, of

    def rows(self, most: int) -> list[Task]:
        """The ones to show: what runs, then what ended last."""
        running = list(islice(self.running.values(), most))
        return running + list(islice(reversed(self.ended), max(0, most - len(running))))

    def __bool__(self) -> bool:
        return bool(self._batches)
