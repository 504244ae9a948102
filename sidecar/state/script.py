"""The one JavaScript evaluator: sources are compiled once and run many times, in a process that may die of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from sidecar.errors import ExpressionError
from sidecar.state import failure, program, realm
from sidecar.state.program import Program
from sidecar.state.script_process import WorkerLost, WorkerProcess
from sidecar.state.script_worker import CHECK, UNSURE, VALUE, Engine, Request

if TYPE_CHECKING:
    from sidecar.state.program import Reading

_MOST_PROGRAMS = 4096
_CHECKS = 0  # the world in which syntax is checked and nothing runs
_DIED = "the evaluator's process died twice over it"


class Script:
    """An evaluator and its limits, each of them for one expression.

    `worker=False` keeps the engine in this process, for tests and one-shot commands: quicker to start, but a few
    built-ins then run on past the time limit, dates are in the machine's zone, and one thread has to make all calls.
    """

    def __init__(self, *, worker: bool = True, time_limit_s: float = 0.25, memory_limit_mb: float = 64) -> None:
        self.time_limit_s = time_limit_s
        self.memory_limit_mb = memory_limit_mb
        self.lock = threading.RLock()  # requests and answers alternate on one connection
        self.generation = 0  # counts the engines: a new one knows nothing
        self._in_process = not worker
        self._engine: WorkerProcess | Engine | None = None
        self._programs: dict[str, Program] = {}
        self._worlds = _CHECKS
        self._numbers = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that evaluates; None where there is none now."""
        return self._engine.pid if isinstance(self._engine, WorkerProcess) else None

    @property
    def running(self) -> bool:
        """Whether there is an engine now."""
        return self._engine is not None

    def compile(self, source: str) -> Program:
        """An expression, a bare object literal, or the body of a function with `return`; else ExpressionError."""
        with self.lock:
            known = self._programs.get(source)
            if known is not None:
                return known
            reading = program.read(source)
            code = self._checked(reading)
            self._numbers += 1
            marked = ("+" if reading.watchful else "-") + code
            made = Program(source, reading.names, reading.bound, marked, self._numbers, reading.simple)
            if len(self._programs) >= _MOST_PROGRAMS:
                self._programs.clear()
            self._programs[source] = made
            return made

    def new_world(self) -> int:
        """The number of a world, under which the engine keeps its values apart from those of every other."""
        with self.lock:
            self._worlds += 1
            return self._worlds

    def close(self) -> None:
        """End the process. A later use starts another."""
        with self.lock:
            if isinstance(self._engine, WorkerProcess):
                self._engine.close()
            self._engine = None

    def engine(self) -> WorkerProcess | Engine:
        """The engine, started where there is none."""
        if isinstance(self._engine, WorkerProcess) and self._engine.closed:
            self._engine = None
        if self._engine is None:
            memory_limit = round(self.memory_limit_mb * 1024 * 1024)
            self.generation += 1
            if self._in_process:
                self._engine = Engine(realm.source(), self.time_limit_s, memory_limit, lambda _: None)
            else:
                self._engine = WorkerProcess(self.time_limit_s, memory_limit)
        return self._engine

    def lose(self, lost: WorkerLost, *, again: bool) -> None:
        """The engine is gone: the next use starts another. An error, unless the same may be asked again."""
        self._engine = None
        if lost.overdue:
            raise failure.too_slow(self.time_limit_s) from None
        if not again:
            raise ExpressionError(_DIED, kind="memory") from None

    def fail(self, status: bytes, text: str, source: str) -> ExpressionError:
        """The error behind an answer."""
        if status == UNSURE:
            return ExpressionError("the values that it reads are too large, or nested too deeply", kind="memory")
        return failure.explain(status, text, source, self.time_limit_s, self.memory_limit_mb)

    def _checked(self, reading: Reading) -> str:
        error = self._refused(reading.expression()) or self._refused(reading.counter_check())
        if error is None:
            return reading.expression()
        if reading.may_be_body:
            body_error = self._refused(reading.body())
            if body_error is None and reading.stray < 0:
                return reading.body()
            error = body_error or error
        if reading.stray >= 0:
            line, column = program.place(reading.source, reading.stray)
            message = f"SyntaxError: nothing opens this {reading.source[reading.stray]!r}"
            raise ExpressionError(message, kind="syntax", line=line, column=column)
        raise failure.syntax(error, reading.source)

    def _refused(self, code: str) -> str | None:
        """What the engine says against it."""
        for again in (True, False):
            try:
                status, text = self.engine().handle(Request(CHECK, _CHECKS, code=code))
            except WorkerLost as lost:
                self.lose(lost, again=again)
                continue
            return None if status == VALUE else text
        raise AssertionError("lose() raises the second time")
