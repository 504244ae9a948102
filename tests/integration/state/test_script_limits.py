"""The limits of the evaluator's process, with expressions that do their worst, and the process's life and death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from sidecar.errors import ExpressionError
from sidecar.state import script_process
from sidecar.state.reactive import Computation, Reactive, Write
from sidecar.state.script import Script
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 30.0
ENDLESS = [
    "for (;;) {}",
    "while (true) { try { while (true) {} } catch { continue } finally { continue } }",
    "const f = () => { try { f() } finally { f() } }; f()",
    "function* g() { for (;;) yield 1 } for (const x of g()) {}",
    "/(a+)+$/.test('a'.repeat(40) + 'b')",
    "/(x+x+)+y/.exec('x'.repeat(40))",
    "throw {toString() { for (;;) {} }, toJSON() { for (;;) {} }}",
    "throw Object.defineProperty(new Error('x'), 'stack', {get() { for (;;) {} }})",
    "return {toJSON() { for (;;) {} }}",
    "return new Proxy({}, {ownKeys() { for (;;) {} }})",
    # Built-ins inside which the engine does not look at its clock.
    "Array(2 ** 32 - 1).join('')",
    "Array.prototype.indexOf.call({length: 2 ** 53 - 1}, 1)",
    "Array.prototype.reverse.call({length: 2 ** 53 - 1})",
    "new Array(2 ** 32 - 1).includes(1)",
    "Array(2 ** 32 - 1).toString()",
    "Array.prototype.fill.call({length: 2 ** 53 - 1}, 0)",
    "JSON.parse('[' + '1,'.repeat(2 ** 22) + '1]').sort(() => 0.5).map(x => [x, x])",
]
GREEDY = [
    "const a = []; for (;;) a.push('x'.repeat(100000) + a.length)",
    "'x'.repeat(2 ** 28).split('')",
    "'x'.repeat(2 ** 29) + 'y'",
    "let s = 'x'; for (;;) s += s",
    "new Uint8Array(2 ** 30)",
    "const b = []; for (;;) b.push(new Uint8Array(2 ** 20))",
    "const b = []; for (;;) b.push(new ArrayBuffer(2 ** 22))",
    "[].concat(...Array(1e7).fill([1, 2, 3]))",
    "Array.from({length: 2 ** 24}, () => [{}])",
    "const m = new Map(); for (let i = 0; ; i++) m.set(i, 'x'.repeat(10000) + i)",
    "'x'.padEnd(2 ** 29)",
    "Array(2 ** 28).fill(0)",
    "JSON.stringify(Array(2 ** 22).fill('x'.repeat(1000)))",
]
DEEP = [
    "const f = () => f() + 1; return f()",
    "const o = {get a() { return this.a }}; return o.a",
    "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return JSON.stringify(a)",
    "[1].map(function f() { return [1].map(f) })",
    "JSON.parse('['.repeat(1e6))",
    "const p = new Proxy({}, {get(t, k, r) { return r[k] }}); return p.x",
]


def soon(condition: Callable[[], object]) -> bool:
    until = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with Script(time_limit_s=0.1) as script:
        yield script


def outcome(script: Script, source: str) -> tuple[str, str]:
    """What a bomb ends in, after which the same world answers as before."""
    world = World(script)
    world.set("state", {"kept": [1, 2, 3]})
    after = script.compile("state.kept.map(x => x * 2)")
    assert world.run(after) == [2, 4, 6]
    body = (
        source
        if source.startswith(("const", "let", "return", "throw", "for", "while", "function"))
        else f"return {source}"
    )
    program = script.compile(body if "return" in body else f"{body}; return 1")
    with pytest.raises(ExpressionError) as caught:
        world.run(program)
    assert world.run(after) == [2, 4, 6]
    world.close()
    assert "\n" not in str(caught.value)
    return caught.value.kind, caught.value.message


@pytest.mark.parametrize("source", ENDLESS)
def test_an_expression_that_does_not_end_is_ended(script: Script, source: str) -> None:
    kind, message = outcome(script, source)
    # Some of them are so greedy that memory may run out first.
    assert kind in ("time", "memory"), message
    if kind == "time":
        assert message == "it took longer than 0.1 s of computing and was ended"


@pytest.mark.parametrize("source", GREEDY)
def test_an_expression_that_takes_all_memory_is_ended(source: str) -> None:
    with Script(time_limit_s=3) as script:
        kind, message = outcome(script, source)
        assert kind == "memory"
        assert message == "it needed more than 64 MiB of memory and was ended"
        assert script.pid
        assert psutil.Process(script.pid).memory_info().rss < 250 * 1024 * 1024


@pytest.mark.parametrize("source", DEEP)
def test_recursion_without_end_is_an_error(script: Script, source: str) -> None:
    process = script.pid
    kind, message = outcome(script, source)
    assert kind == "stack", message
    assert "too deeply" in message
    assert process in (None, script.pid), "the process outlives it"


def test_the_limits_are_settings() -> None:
    with Script(time_limit_s=2, memory_limit_mb=8) as script:
        world = World(script)
        assert world.run(script.compile("let n = 0; for (let i = 0; i < 3e6; i++) n += i; return n")) == 4499998500000
        with pytest.raises(ExpressionError, match="more than 8 MiB"):
            world.run(script.compile("Array(2 ** 20).fill(0).map(x => [x])"))


def test_the_memory_limit_is_for_the_expression_and_not_for_what_the_run_holds() -> None:
    with Script(time_limit_s=5, memory_limit_mb=8) as script:
        world = World(script)
        rows = [{"id": number, "text": "x" * 50} for number in range(100_000)]
        world.set("rows", rows)
        count = script.compile("rows.length + (given ? given.length : 0)")
        assert world.run(count) == 100_000
        for _ in range(2):
            with pytest.raises(ExpressionError, match="more than 8 MiB"):
                world.run(script.compile("rows.map(row => ({...row, more: [row.text + row.id]}))"))
            assert world.run(count, {"given": rows}) == 200_000


def test_a_process_that_was_killed_is_replaced_and_knows_everything_again() -> None:
    with Script() as script:
        world = World(script)
        world.set("x", {"a": 1})
        program = script.compile("[x, inner]")
        assert world.run(program) == [{"a": 1}, None]
        for number in range(3):
            first = script.pid
            assert first
            os.kill(first, signal.SIGKILL)
            world.patch("x", ("a",), number, whole={"a": number})
            assert world.run(program) == [{"a": number}, None]
            assert script.pid not in (None, first)
            assert soon(lambda pid=first: not psutil.pid_exists(pid))  # type: ignore[misc]


def test_a_process_that_is_stopped_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_process, "_SLACK_S", 0.3)
    with Script(time_limit_s=0.05) as script:
        world = World(script)
        assert world.run(script.compile("1 + 0")) == 1
        first = script.pid
        assert first
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(ExpressionError) as caught:
            world.run(script.compile("1 + 0"))
        assert caught.value.kind == "time"
        assert not psutil.pid_exists(first)
        assert world.run(script.compile("2")) == 2


def test_an_interrupt_while_waiting_does_not_mix_up_the_answers() -> None:
    def interrupt(*_: object) -> None:
        raise ZeroDivisionError("as a Ctrl-C would")

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Script(time_limit_s=20) as script:
            world = World(script)
            world.set("x", 5)
            slow, quick = script.compile("for (;;) {} return x"), script.compile("x + 1")
            assert world.run(quick) == 6
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(ZeroDivisionError):
                world.run(slow)
            assert world.run(quick) == 6
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_threads_take_turns() -> None:
    with Script() as script:
        found: dict[int, list[object]] = {}

        def ask(number: int) -> None:
            world = World(script)
            world.set("me", number)
            found[number] = [world.run(script.compile("me")) for _ in range(200)]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert found == {number: [number] * 200 for number in range(4)}


def test_closing_ends_the_process_and_a_later_use_starts_another() -> None:
    script = Script()
    world = World(script)
    world.set("x", 1)
    assert world.run(script.compile("x")) == 1
    first = script.pid
    script.close()
    assert first
    assert not psutil.pid_exists(first)
    assert script.pid is None
    world.close()
    assert script.pid is None, "there is nothing to tell, and nobody to tell it"
    assert world.run(script.compile("x")) == 1
    script.close()
    script.close()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "computing"])
def test_the_process_does_not_outlive_its_owner(busy: bool) -> None:
    owner = """
import sys, threading
from sidecar.state.script import Script
from sidecar.state.world import World
script = Script(time_limit_s=1)
world = World(script)
world.run(script.compile("1"))
print(script.pid, flush=True)
if sys.argv[1] == "True":
    world.run(script.compile("Array(2 ** 32 - 1).join('')"))
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", owner, str(busy)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        worker = psutil.Process(int(process.stdout.readline()))
        if busy:
            before = worker.cpu_times().user
            assert soon(lambda: worker.cpu_times().user > before)
        process.kill()
    assert soon(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed in /proc only")
def test_a_lost_process_leaves_no_descriptor_and_no_zombie() -> None:
    with Script(time_limit_s=0.02) as script:
        world = World(script)
        bomb = script.compile("Array(2 ** 32 - 1).join('')")
        assert world.run(script.compile("1")) == 1
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(ExpressionError):
                world.run(bomb)
        assert world.run(script.compile("1")) == 1
        assert len(os.listdir("/proc/self/fd")) <= before
    children = psutil.Process().children()
    assert [child for child in children if child.status() == psutil.STATUS_ZOMBIE] == []


def test_the_limit_holds_where_the_owner_blocks_the_timers_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_process, "_SLACK_S", 600.0)  # so that nothing but the timer can end it

    def too_late(*_: object) -> None:
        pytest.fail("the timer's signal did not end it")

    ignored = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    alarmed = signal.signal(signal.SIGALRM, too_late)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        with Script(time_limit_s=0.05) as script:
            assert outcome(script, "Array(2 ** 32 - 1).join('')")[0] == "time"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGPROF, ignored)
        signal.signal(signal.SIGALRM, alarmed)


def test_an_ordinary_endless_loop_does_not_cost_the_process() -> None:
    with Script(time_limit_s=0.05) as script:
        assert World(script).run(script.compile("1")) == 1
        process = script.pid
        assert outcome(script, "for (;;) {}")[0] == "time"
        assert script.pid == process


def test_the_memory_limit_holds_in_a_world_without_values() -> None:
    with Script(time_limit_s=3) as script, pytest.raises(ExpressionError, match="more than 64 MiB"):
        World(script).run(script.compile("Array.from({length: 3e6}, (_, i) => ['x' + i])"))


def test_a_transaction_that_outlives_its_process_is_undone_in_the_next_one() -> None:
    with Script() as script:
        world = World(script)
        read = script.compile("[x, typeof y]")
        world.set("x", {"a": 1})
        assert world.run(read) == [{"a": 1}, "undefined"]
        with contextlib.suppress(ZeroDivisionError), world.transaction():
            assert script.pid
            os.kill(script.pid, signal.SIGKILL)
            world.patch("x", ("a",), 2, whole={"a": 2})
            world.set("y", 1)
            assert world.run(read) == [{"a": 2}, "number"]
            raise ZeroDivisionError
        assert world.run(read) == [{"a": 1}, "undefined"]


def test_a_process_has_nothing_of_its_owners_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "do not tell")
    with Script() as script:
        World(script).run(script.compile("1"))
        assert script.pid
        assert "SECRET_TOKEN" not in psutil.Process(script.pid).environ()
        assert os.getsid(script.pid) != os.getsid(0)


def test_a_transaction_in_which_the_process_dies_leaves_no_trace() -> None:
    fields = {
        "first": Computation("raw.x", "input.n + 1"),
        "second": Computation("computed.first", "if (input > 5) Array(2 ** 32 - 1).join(''); return input * 2"),
    }
    with Script(time_limit_s=0.05) as script:
        reactive = Reactive(script, fields, raw={"x": {"n": 1}})
        process = script.pid
        with pytest.raises(ExpressionError, match="computed field 'second': it took longer"):
            reactive.update([Write("raw.x.n", 7), Write("raw.new", 1)])
        assert script.pid != process
        assert reactive.flattened() == {"x": {"n": 1}, "first": 2, "second": 4}
        seen = script.compile("[x, first, second, typeof new_, typeof other]")
        assert reactive.world.run(seen) == [{"n": 1}, 2, 4, "undefined", "undefined"]
        assert reactive.update([Write("raw.x.n", 2)]) == ("first", "second")
        assert reactive.world.run(seen)[:3] == [{"n": 2}, 3, 6]
