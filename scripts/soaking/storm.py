"""The storm: runs, signals, kills, full disks and clock steps at once; then calm, in which all comes to its end."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import psutil

from sidecar.errors import REPORTED
from soaking import signalling
from soaking.clock import Clock
from soaking.keeper import Keeper
from soaking.project import MARK, Soaked
from soaking.signalling import Signaller
from soaking.witness import Witness

if TYPE_CHECKING:
    from pathlib import Path

_COLLECT_S = 0.05
_OVER = "completed"
_ITEMS = (4, 4, 4, 16)  # of a run: most are short, some go on long enough for all that may befall them
_FARTHEST_S = 86_400.0
_NEAREST_S = 0.01


@dataclass(frozen=True, slots=True)
class Weather:
    """What is asked of a storm."""

    seconds_s: float
    seed: int
    workspaces: int
    runs: int
    kill_every_s: float
    signal_every_s: float
    disk: bool
    clock: bool
    calm_s: float = 240.0


class Storm:
    """One storm on one project."""

    def __init__(self, place: Path, mark: str, weather: Weather) -> None:
        self._weather = weather
        self.soaked = Soaked(place, mark, weather.workspaces, weather.seed)
        self._keeper = Keeper(self.soaked)
        self._signaller = Signaller(self.soaked, weather.seed)
        self._witness = Witness(self.soaked.own / "sidecar.db")
        self._random = random.Random(f"{weather.seed} storm")
        self._open: set[str] = set()  # runs that are not completed
        self._told: dict[str, Any] = {
            "rounds": 0,
            "starts": 0,
            "refused": [],
            "full_disks": 0,
            "owner_kills": 0,
            "clock_steps": 0,
            "figures": [],
        }

    async def run(self) -> dict[str, Any]:
        """Storm, calm, and the figures; what the auditor needs to know."""
        began_at = time.monotonic()
        async with anyio.create_task_group() as beside:
            await beside.start(self._keeper.run)
            beside.start_soon(self._collect)
            with anyio.move_on_after(self._weather.seconds_s):
                async with anyio.create_task_group() as storm:
                    blows = [self._begin, self._signal, self._kill, self._kill_owner]
                    blows += [self._fill] if self._weather.disk else []
                    blows += [self._step_clock] if self._weather.clock else []
                    for blow in blows:
                        storm.start_soon(blow)
            self._told["storm_s"] = time.monotonic() - began_at
            self._keeper.kill()  # what nobody executes now is resumed by the next one
            await anyio.sleep(0.2)
            with anyio.fail_after(self._weather.calm_s):
                await self._keeper.until_ready()
            self._told["unfinished"] = await self._calm()
            self._told["figures"] = await self._measure()
            beside.cancel_scope.cancel()
        self._told["exit_code"] = self._keeper.end()
        self._look()
        self._witness.close()
        return self._record()

    def _record(self) -> dict[str, Any]:
        return {
            **self._told,
            **signalling.record(self._signaller),
            "seed": self._weather.seed,
            "root": str(self.soaked.root),
            "mark": self.soaked.environment[MARK],
            "kills": self._keeper.kills,
            "restarts": self._keeper.restarts,
            "deaths": self._keeper.deaths,
            "unwritten": self._signaller.unwritten,
            "plans": self.soaked.plans,
            "witnessed": self._witness.seen,
        }

    # --- what blows

    async def _begin(self) -> None:
        async with anyio.create_task_group() as beginnings:
            while True:
                live = set(self.soaked.live())
                self._forget_completed()
                idle = sorted(self._open - live)
                if len(self._open) < self._weather.runs:
                    self._add()
                elif idle and (self._keeper.is_ready() or self._random.random() < 0.1):
                    # Without a daemon it gets an owner of its own: that has to be seen too, but not always.
                    beginnings.start_soon(self._hand_over, self._random.choice(idle))
                self._told["rounds"] += 1
                await anyio.sleep(self._random.uniform(0.05, 0.4))

    def _add(self) -> None:
        workspace = self._random.choice([*self.soaked.workspaces, None])
        try:
            self._open.add(self.soaked.add_run(workspace, items=self._random.choice(_ITEMS)))
        except (*REPORTED, OSError) as error:
            self._told["refused"].append(str(error))

    async def _hand_over(self, run_id: str) -> None:
        self._told["starts"] += 1
        why = await self.soaked.begin(run_id)
        if why is not None:
            self._told["refused"].append(why)

    def _forget_completed(self) -> None:
        try:
            self._open -= {run_id for run_id in self._open if self.soaked.journal.run(run_id).status == _OVER}
        except REPORTED as error:
            self._told["refused"].append(str(error))

    async def _signal(self) -> None:
        while True:
            await anyio.sleep(self._random.expovariate(1 / self._weather.signal_every_s))
            self._signaller.act()

    async def _kill(self) -> None:
        while True:
            if self._random.random() < 0.8:  # else, perhaps, while it has hardly begun
                await self._keeper.until_ready()
            await anyio.sleep(self._random.uniform(0.1, 1.6 * self._weather.kill_every_s))
            if self._random.random() < 0.8:
                self._keeper.kill()
            else:
                self._keeper.restart()

    async def _kill_owner(self) -> None:
        """Of a run that the daemon does not have."""
        while True:
            await anyio.sleep(self._random.uniform(0.1, 2.0 * self._weather.kill_every_s))
            owners = {run_id: self.soaked.owner(run_id) for run_id in self.soaked.live()}
            others = sorted(pid for pid in owners.values() if pid not in (0, self._keeper.pid))
            if others:
                self._told["owner_kills"] += _kill_own(self._random.choice(others), self.soaked.environment[MARK])

    async def _fill(self) -> None:
        ballast = self.soaked.root / "ballast"
        while True:
            await anyio.sleep(self._random.uniform(5.0, 20.0))
            self._keeper.may_die = True
            try:
                _fill_up(ballast)
                self._told["full_disks"] += 1
                await anyio.sleep(self._random.uniform(0.3, 2.0))
            finally:
                ballast.unlink(missing_ok=True)
            self._keeper.kill()  # the runs that lost their journal are resumed
            self._keeper.may_die = False

    async def _step_clock(self) -> None:
        """By milliseconds or by a day, forth or back, and never farther than a day from the machine's own clock."""
        clock, offset_s = Clock(self.soaked.place), 0.0
        while True:
            await anyio.sleep(self._random.uniform(0.5, 8.0))
            step_s = _NEAREST_S * (_FARTHEST_S / _NEAREST_S) ** self._random.random() * self._random.choice((-1, 1))
            offset_s += step_s if abs(offset_s + step_s) <= _FARTHEST_S else -step_s
            clock.set(offset_s)
            self._told["clock_steps"] = clock.steps

    async def _collect(self) -> None:
        while True:
            self._look()
            await anyio.sleep(_COLLECT_S)

    def _look(self) -> None:
        self._signaller.collect()
        self._witness.look(self.soaked.plans)

    # --- afterwards

    async def _calm(self) -> list[str]:
        """Nobody disturbs anybody: all runs complete, and no signal is left. Which ones do not."""
        deadline = time.monotonic() + self._weather.calm_s
        while time.monotonic() < deadline:
            self._forget_completed()
            for directory in self._with_signals():
                if not self._open:  # a stop waits for the next run: here it is
                    workspace = directory if directory in self.soaked.workspaces else None
                    self._open.add(self.soaked.add_run(workspace, items=1))
            if not self._open:
                return []
            for run_id in sorted(self._open - set(self.soaked.live())):
                await self._hand_over(run_id)
            await anyio.sleep(0.2)
        return sorted(self._open)

    def _with_signals(self) -> list[Path]:
        places = [self.soaked.own, *self.soaked.workspaces]
        return [place for place in places if any(os.path.lexists(place / name) for name in (".stop", ".abort"))]

    async def _measure(self) -> list[dict[str, float]]:
        """What a daemon holds when nothing runs: after some runs, and after as many again, several times."""
        figures = []
        for _ in range(4):
            for _ in range(self._weather.runs // 2 + 1):
                self._open.add(self.soaked.add_run(self._random.choice(self.soaked.workspaces), items=1))
            self._told["unfinished"] += await self._calm()
            with anyio.move_on_after(10):
                while self.soaked.live():
                    await anyio.sleep(0.05)
            figures.append(self._keeper.figures())
        return figures


def _fill_up(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        room = os.statvfs(path.parent)
        try:  # at once, and the rest by writing
            os.posix_fallocate(file.fileno(), 0, max((room.f_bavail - 256) * room.f_bsize, 1))
            file.seek(0, os.SEEK_END)
        except OSError:
            pass
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def _kill_own(pid: int, mark: str) -> bool:
    """Only what is marked as ours: the number in a lock can be an old one."""
    try:
        process = psutil.Process(pid)
        if process.environ().get(MARK) != mark:
            return False
        process.kill()
    except psutil.Error:
        return False
    return True
