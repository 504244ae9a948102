"""What expressions and computed fields cost, with the marshalling between Python and JavaScript."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.report import Figure
from sidecar.state.reactive import Computation, Reactive, Write
from sidecar.state.script import Script
from sidecar.state.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

CONDITION = "has_errors && retry_count < 5 && files.length > 0 && branch !== 'main' && config.enabled"
VALUES = {"has_errors": True, "retry_count": 2, "files": ["a"], "branch": "dev", "config": {"enabled": True}}
TRANSFORM = "input.filter(o => o.errors > 0).map(o => ({ id: o.id, label: o.name.toUpperCase(), bad: !o.ok }))"
OBJECTS = [{"id": i, "name": f"file{i}.ts", "errors": i % 7, "ok": i % 2 == 0} for i in range(10_000)]
# Parse, compute, stringify: what node needs at least when it is another process.
NODE = f"""
const text = require('fs').readFileSync(0, 'utf8'), taken = [];
for (let round = 0; round < 15; round++) {{
  const begin = performance.now();
  const input = JSON.parse(text);
  JSON.stringify({TRANSFORM});
  taken.push(performance.now() - begin);
}}
console.log(JSON.stringify(taken));
"""
FIELDS = 500
READERS = 3


def measure(*, quick: bool) -> list[Figure]:
    """A condition, a large transform, and one change in a large state."""
    return [*_condition(20 if quick else 100), *_transform(7 if quick else 25), *_one_field(5 if quick else 20)]


def _condition(rounds: int) -> list[Figure]:
    figures = []
    for worker, limit in ((True, 75), (False, 15)):
        with Script(worker=worker) as script:
            world = World(script)
            for name, value in VALUES.items():
                world.set(name, value)
            program = script.compile(CONDITION)
            taken = [_taken(lambda run=world.run, of=program: [run(of) for _ in range(100)]) for _ in range(rounds)]  # type: ignore[misc]
        where = "through the worker" if worker else "in-process"
        figures.append(Figure(f"state: condition, five names, {where}", median(taken) * 1e6 / 100, "µs", limit=limit))
    return figures


def _transform(rounds: int) -> list[Figure]:
    name = f"state: transform of {len(OBJECTS):,} objects, marshalled"
    with Script() as script:
        world = World(script)
        program = script.compile(TRANSFORM)
        taken = [_taken(lambda: world.run(program, {"input": OBJECTS})) for _ in range(rounds)]
    ours = median(taken) * 1000
    figures = [Figure(name, ours, "ms", limit=60)]
    if node := shutil.which("node"):
        done = subprocess.run([node, "-e", NODE], input=json.dumps(OBJECTS), capture_output=True, text=True, check=True)
        figures.append(Figure(name, ours, "ms", "node, JSON both ways", median(json.loads(done.stdout)), limit=10))
    return figures


def _one_field(rounds: int) -> list[Figure]:
    """One of as many raw fields as there are computed ones is changed; three of these read it."""
    raw: dict[str, Any] = {f"r{i}": {"rows": [f"{i}-{j}" * 10 for j in range(40)], "n": i} for i in range(FIELDS)}
    fields = {
        f"c{i}": Computation(
            f"raw.r{0 if i < READERS else i}", "{ rows: input.rows.length, first: input.rows[0], n: input.n }"
        )
        for i in range(FIELDS)
    }
    size = len(json.dumps(raw)) / 1e6
    with Script() as script:
        reactive = Reactive(script, fields, raw=raw)
        all_of_them = [[Write(f"raw.r{i}.n", -number) for i in range(FIELDS)] for number in range(1, rounds)]
        everything = [_taken(lambda writes=writes: reactive.update(writes)) for writes in all_of_them]  # type: ignore[misc]
        changes = []
        for number in range(rounds * 10):
            changes.append(_taken(lambda n=number: reactive.update([Write("raw.r0.n", n)])))  # type: ignore[misc]
            assert reactive.computed["c2"]["n"] == number
    name = f"state: 1 of {FIELDS} fields of {size:.1f} MB, {READERS} readers"
    one, every = median(changes) * 1000, median(everything) * 1000
    return [Figure(name, one, "ms", "all of them changed", every, 1 / 50, f"{every / one:.0f} times faster")]


def _taken(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
