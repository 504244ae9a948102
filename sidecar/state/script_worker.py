"""The engine behind expressions, and the process it runs in: frames on stdin are carried out, each is answered.

The process imports nothing of sidecar and next to nothing else, so that it starts about as fast as Python does.
"""

from __future__ import annotations

import signal
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


# A request: what, which world, which expression, then the lengths of three texts: code, changes, arguments.
REQUEST = struct.Struct(">cIIIII")
REPLY = struct.Struct(">cI")
RUN, CHECK, DROP = b"r", b"c", b"d"
VALUE, ERROR, MEMORY, UNSURE = b"v", b"e", b"m", b"x"  # unsure: what the world now holds is not what it should
FRAME_BYTES = 1 << 16
STACK_BYTES = 768 * 1024  # safely inside the 1 MiB that the smallest of usual thread stacks leave
# The engine stops itself at its limit of CPU time, but not inside a long-running built-in: there the kernel ends the
# process, by a timer of CPU time too, so that a busy machine is no reason to end anything.
PATIENCE = 1.5
MARSHALLING_S = 30.0
MEASURE_EVERY = 256 * 1024
# The realm's own lines are beyond this one: lower ones in an error are the expression's.
REALM_LINE = 100_000


class EngineRequest(NamedTuple):
    """What an engine is asked."""

    what: bytes
    world: int
    expression: int = 0
    code: str = ""
    changes: str = ""
    arguments: str = ""


class Realm:
    """One engine with the values of one run."""

    def __init__(self, source: str, time_limit_s: float, memory_limit: int) -> None:
        from _quickjs import Context  # type: ignore[import-not-found]  # noqa: PLC0415 - its path is an argument

        self._context: Any = Context()
        self._context.set_max_stack_size(STACK_BYTES)
        pick = self._context.eval("\n" * REALM_LINE + source)
        self._change, self._run, self._define = pick("change"), pick("run"), pick("define")
        self._time_limit_s = time_limit_s
        self._memory_limit = memory_limit
        self._unmeasured = 0
        self._measure()

    def change(self, changes: str) -> None:
        """Apply changes to the values. No limits: the owner decides how large a state may be."""
        self._context.set_time_limit(-1)
        self._context.set_memory_limit(0)
        try:
            self._change(changes)
        finally:
            self._unmeasured += len(changes)
            if self._unmeasured > MEASURE_EVERY:
                self._measure()
            else:
                self._context.set_memory_limit(self._limit)

    def run(self, number: int, code: str, arguments: str) -> str:
        """Call an expression under the limits, compiled before where there is code: its first character is + where it
        always gets copies of the values. The arguments are the caller's, as the state is: they are not counted."""
        self._context.set_time_limit(self._time_limit_s)
        if code:
            self._define(number, self._context.eval(code[1:]), code[0] == "+")
        is_large = len(arguments) >= MEASURE_EVERY
        if is_large:
            self._context.set_memory_limit(self._limit + 16 * len(arguments))
        try:
            answer = str(self._run(number, arguments))
        finally:
            if is_large:
                self._context.set_memory_limit(self._limit)
        if answer.startswith("eInternalError: out of memory"):
            self._context.gc()  # what it left in cycles
        return answer

    def check(self, code: str) -> None:
        """Compile, and forget it."""
        self._context.set_time_limit(self._time_limit_s)
        self._context.eval(code)

    def _measure(self) -> None:
        # The limit is on what one expression needs, not on what the run holds.
        self._unmeasured = 0
        self._limit = self._context.memory()["malloc_size"] + self._memory_limit
        self._context.set_memory_limit(self._limit)


class Engine:
    """All realms of a process."""

    def __init__(self, source: str, time_limit_s: float, memory_limit: int, watch: Callable[[float], object]) -> None:
        self._source = source
        self._limits = (time_limit_s, memory_limit)
        self._watch = watch
        self._realms: dict[int, Realm] = {}

    def handle(self, request: EngineRequest) -> tuple[bytes, str]:
        """Carry out one request. Every failure is an answer."""
        world = request.world
        if request.what == DROP:
            self._realms.pop(world, None)
            return VALUE, ""
        try:
            return VALUE, self._carry_out(request)
        except Exception as error:  # a JavaScript error, or Python's own MemoryError for a huge answer
            text = str(error) if not isinstance(error, MemoryError) else "InternalError: out of memory"
            if world not in self._realms:
                return UNSURE, text
            # `null`: there was not even room for the error.
            return (MEMORY if text == "null\n" else ERROR), text

    def _carry_out(self, request: EngineRequest) -> str:
        world = request.world
        realm = self._realms.get(world)
        if realm is None or request.changes:
            self._watch(MARSHALLING_S)
        if realm is None:
            realm = self._realms[world] = Realm(self._source, *self._limits)
        if request.changes:
            try:
                realm.change(request.changes)
            except Exception:
                del self._realms[world]
                raise
        self._watch(self._limits[0] * PATIENCE)
        if request.what == CHECK:
            realm.check(request.code)
            return ""
        return realm.run(request.expression, request.code, request.arguments)


def serve(file: int) -> None:
    """Answer requests until the other end is closed. The first frame is the engine's: realm source and limits."""
    with (
        open(file, "rb", FRAME_BYTES, closefd=False) as requests,
        open(file, "wb", FRAME_BYTES, closefd=False) as answers,
    ):
        _, time_limit_ms, memory_limit, *lengths = REQUEST.unpack(requests.read(REQUEST.size))
        source = requests.read(sum(lengths)).decode()
        engine = Engine(
            source, time_limit_ms / 1000, memory_limit, lambda cpu_s: signal.setitimer(signal.ITIMER_PROF, cpu_s)
        )
        while header := requests.read(REQUEST.size):
            what, world, expression, *lengths = REQUEST.unpack(header)
            texts = [requests.read(length).decode("utf-8", "surrogatepass") if length else "" for length in lengths]
            status, text = engine.handle(EngineRequest(what, world, expression, *texts))
            answer = text.encode("utf-8", "surrogatepass")
            answers.write(REPLY.pack(status, len(answer)) + answer)
            answers.flush()


if __name__ == "__main__":
    sys.path.append(sys.argv[1])  # where the engine's module is: `site` is not imported
    # A parent that ignores or blocks the timer's signal passes that on.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    try:
        serve(0)
    except (OSError, struct.error):
        pass  # the owner is gone
