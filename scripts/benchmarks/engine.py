"""What the interpreter costs: steps inside, steps that reach out, many open runs, and a long run resumed."""

from __future__ import annotations

import os
import resource
import sqlite3
import tempfile
import time
from contextlib import asynccontextmanager
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.report import Figure
from sidecar import config
from sidecar.catalog import workflows
from sidecar.config import Project
from sidecar.engine.owner import Owner
from sidecar.engine.server_driven import ServerDriven
from sidecar.engine.steps import HANDLERS
from sidecar.engine.steps.context import Context, Handler
from sidecar.model.steps import Wait
from sidecar.service import runs
from sidecar.service.driving import Driving
from sidecar.service.owners import StartOptions
from sidecar.signals.run_lock import RunLock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_TURNS = 5
_LOOP = """
default_state: {{raw: {{n: 0}}}}
state_schema: {{raw: {{n: number}}}}
steps:
  - id: loop
    type: while
    condition: "{{{{ n < {rounds} }}}}"
    max_iterations: {rounds}
    body:
      - {{id: count, type: state_update, path: raw.n, operation: increment}}
"""
_EFFECTS = """
steps:
  - id: each
    type: foreach
    items: "{{{{ Array.from({{length: {rounds}}}, (_, i) => i) }}}}"
    body:
      - {{id: effect, type: wait, duration: 0}}
"""
_DRIVEN = """
default_state: {raw: {n: 0}}
steps:
  - id: loop
    type: while
    condition: "{{ n < 1000 }}"
    max_iterations: 1000
    body:
      - {id: ask, type: agent, prompt: "number {{ n }}", state_update: {path: raw.last}}
      - {id: count, type: state_update, path: raw.n, operation: increment}
"""


def measure(*, quick: bool) -> list[Figure]:
    """On the disk below the working directory: a temporary file system would make every sync free."""
    with tempfile.TemporaryDirectory(dir=os.getcwd(), prefix=".bench-") as directory:
        return anyio.run(_measure, directory, quick)


async def _measure(root: str, quick: bool) -> list[Figure]:
    async with _owner(root) as (project, owner):
        inside = await _inside(project, owner, 500 if quick else 5_000)
        durable = await _durable(project, owner, 100 if quick else 1_000)
        resumed = await _resumed(project, owner, 1_000 if quick else 10_000)
        open_runs = await _open_runs(project, owner, 50 if quick else 1_000)
        return [inside, durable, resumed, *open_runs]


@asynccontextmanager
async def _owner(root: str) -> AsyncIterator[tuple[Project, Owner]]:
    environment = dict(os.environ)
    project = Project(root, config.load(root, environment), environment)
    async with Owner(root, project.settings, environment, lambda _: None) as owner:
        yield project, owner


async def _execute(project: Project, owner: Owner, text: str, name: str) -> tuple[str, float]:
    prepared = runs.prepare(project, _definition(project.root, name, text), {})
    run_id = runs.begin(project, prepared, database=owner.database)
    begin = time.perf_counter()
    ending = await ServerDriven(owner, run_id, lambda _: None).execute()
    assert ending.status == "completed", ending
    return run_id, time.perf_counter() - begin


def _definition(root: str, name: str, text: str) -> Any:
    directory = os.path.join(root, ".swissarmyhammer", "workflows")
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f"{name}.yaml"), "w", encoding="utf-8") as file:
        file.write(text)
    return workflows.find(root, name)


async def _inside(project: Project, owner: Owner, rounds: int) -> Figure:
    """Each iteration is a condition and a state update: two internal steps. The best of a few: noise only adds."""
    await _execute(project, owner, _LOOP.format(rounds=10), "warm")
    text = _LOOP.format(rounds=rounds // _TURNS)
    taken_s = min([(await _execute(project, owner, text, "inside"))[1] for _ in range(_TURNS)])
    return Figure("engine: internal step, journal included", taken_s / (2 * (rounds // _TURNS)) * 1e6, "µs", limit=100)


async def _durable(project: Project, owner: Owner, rounds: int) -> Figure:
    """A step whose effect costs nothing: what is left are its entries on the disk. In turns with plain commits, the
    best of each: noise only adds."""

    async def nothing(step: Any, context: Context) -> None:
        return None

    text = _EFFECTS.format(rounds=rounds // _TURNS)
    taken_s, plain_s = [], []
    handler: Handler = HANDLERS[Wait]
    HANDLERS[Wait] = nothing
    try:
        for _ in range(_TURNS):
            plain_s.append(_plain_commits(project.root, rounds // _TURNS))
            taken_s.append((await _execute(project, owner, text, "durable"))[1])
    finally:
        HANDLERS[Wait] = handler
    each_ms = 1e3 / (rounds // _TURNS)
    name = "plain SQLite commit, WAL, synchronous FULL"
    step = "engine: durable step, begun and completed"
    return Figure(step, min(taken_s) * each_ms, "ms", name, min(plain_s) * each_ms, 3)


def _plain_commits(root: str, rounds: int) -> float:
    plain = sqlite3.connect(os.path.join(root, "plain.db"), isolation_level=None)
    plain.execute("PRAGMA journal_mode = WAL")
    plain.execute("PRAGMA synchronous = FULL")
    plain.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, text TEXT)")
    begin = time.perf_counter()
    for number in range(rounds):
        plain.execute("INSERT INTO rows (text) VALUES (?)", (f"{number}" * 40,))
    taken_s = time.perf_counter() - begin
    plain.close()
    return taken_s


async def _resumed(project: Project, owner: Owner, steps: int) -> Figure:
    """A run that was stopped after many steps, up to the moment at which it stops again."""
    text = _LOOP.format(rounds=steps) + "  - {id: end, type: exit, status: failed, message: here}\n"
    prepared = runs.prepare(project, _definition(project.root, "long", text), {})
    run_id = runs.begin(project, prepared, database=owner.database)
    assert (await ServerDriven(owner, run_id, lambda _: None).execute()).status == "failed"
    begin = time.perf_counter()
    with RunLock(project.root, run_id):
        runs.begin_again(project.root, owner.journal, owner.journal.run(run_id), "server")
    assert (await ServerDriven(owner, run_id, lambda _: None).execute()).status == "failed"
    return Figure(
        f"engine: resume of a run with {2 * steps:,} journalled steps", time.perf_counter() - begin, "s", limit=1
    )


class _Nobody:
    async def begin(self, run_id: str, options: StartOptions | None = None) -> None:
        raise NotImplementedError

    async def submit_stage(self, run_id: str, stage: str, output: str, kind: str) -> None:
        raise NotImplementedError

    def live(self, run_id: str) -> None:
        """None is executed here."""


async def _open_runs(project: Project, owner: Owner, count: int) -> list[Figure]:
    _definition(project.root, "driven", _DRIVEN)
    cases = Driving(project, owner, _Nobody())
    first = await _start(cases)
    alone = await _ask(cases, [first] * min(count, 200))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = [await _start(cases) for _ in range(count)]
    await _ask(cases, runs)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / count
    beside = await _ask(cases, runs)
    name = "the same with one run"
    return [
        Figure(
            f"engine: get_next_step with {count:,} open runs, p99", _p99(beside) * 1e3, "ms", name, _p99(alone) * 1e3, 5
        ),
        Figure("engine: memory of an idle agent-driven run", grown, "KB", limit=100),
    ]


async def _start(cases: Driving) -> str:
    started: str = (await cases.start("driven", {}))["workflow_id"]
    return started


async def _ask(cases: Driving, runs: list[str]) -> list[float]:
    """Each asks for a step, reports it, and asks for the next, which is what is measured."""
    taken = []
    for run_id in runs:
        step = (await cases.next_step(run_id))["step"]
        await cases.step_complete(run_id, step["id"], result="done")
        begin = time.perf_counter()
        await cases.next_step(run_id)
        taken.append(time.perf_counter() - begin)
    return taken


def _p99(taken: list[float]) -> float:
    return quantiles(taken, n=100)[98]
