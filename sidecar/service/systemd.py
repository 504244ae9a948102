"""Notifies systemd: ready, status, watchdog, reloading, and how long stopping may take."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

logger = logging.getLogger("sidecar.daemon")
_LOOK_S = 1.0
_BEATS = 3  # in the time after which systemd loses patience
# Besides the grace that agents have: the answers that are still to be delivered, the last look at the process table,
# the checkpoints. Generously: who needs less is not kept waiting.
_END_S = 15.0
_KEPT = 10


@dataclass(frozen=True, slots=True)
class Pulse:
    """How one project's daemon is at this moment."""

    root: str
    turns: int  # how often its watcher has turned
    runs: int
    agents: int
    kill_after_s: float


class Systemd:
    """The manager that started us, if it is one that wants to know. It never slows or ends the daemon."""

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._unsent: list[str] = []
        self._serves = False
        self._ends = False
        self._status = ""

    @classmethod
    def taken_from(cls, environment: MutableMapping[str, str]) -> Systemd:
        """As the environment names it. It is taken out there: what agents tell systemd must not pass for ours."""
        address = environment.pop("NOTIFY_SOCKET", None) or None
        micros, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        ours = micros.isdigit() and int(micros) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(micros) / 1e6 if ours else None)

    def reloading(self) -> None:
        """The settings are being read again; say `reloaded` when that is done."""
        if self._serves and not self._ends:
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """They were."""
        if self._serves and not self._ends:
            self._send("READY=1")

    def ending(self, pulses: Sequence[Pulse]) -> None:
        """Its runs are being interrupted: within this time, or something is wrong."""
        grace_s = max((pulse.kill_after_s for pulse in pulses), default=0.0)
        self._ends = True
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={round((grace_s + _END_S) * 1e6)}")
        self._notify(pulses)

    async def serving(self, look: Callable[[], Sequence[Pulse]]) -> None:
        """It serves from now on. Tells until cancelled, and feeds the watchdog while everything turns.

        That this loop turns is proven by being here; that the watchers do, by their counts.
        """
        if self._address is None:
            return
        pulses, fed_at = look(), time.monotonic()
        turns = _turns(pulses)
        self._serves = True
        self._send("READY=1")
        self._notify(pulses)
        while True:
            await anyio.sleep(self._pause_s)
            self._send_again()
            pulses, standing = look(), list[str]()
            if self._watchdog_s is not None and time.monotonic() - fed_at >= self._watchdog_s / _BEATS:
                standing = _standing(pulses, turns)
                if not standing:
                    self._send("WATCHDOG=1")
                    turns, fed_at = _turns(pulses), time.monotonic()
            self._notify(pulses, standing)

    @property
    def _pause_s(self) -> float:
        return _LOOK_S if self._watchdog_s is None else min(_LOOK_S, self._watchdog_s / _BEATS / 2)

    def _notify(self, pulses: Sequence[Pulse], standing: Sequence[str] = ()) -> None:
        """The line that `systemctl status` shows, whenever it changed."""
        status = f"the watcher of signal files does not run: {', '.join(standing)}" if standing else None
        status = status or status_line(pulses, ends=self._ends)
        if status != self._status:
            self._status = status
            self._send(f"STATUS={' '.join(status.split())}")

    def _send(self, text: str) -> None:
        if self._address is not None:
            self._unsent.append(text)
            self._send_again()

    def _send_again(self) -> None:
        """In order, and never waiting for the other: what does not get through now does a moment later."""
        if not self._unsent:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                while self._unsent:
                    out.sendto(self._unsent[0].encode("utf-8", "replace"), _bound(self._address or ""))
                    del self._unsent[0]
        except OSError as error:
            # Full, or the manager is just executing itself anew. All but the last few are stale by then.
            logger.debug("systemd cannot be notified of %r: %s", self._unsent, error)
            del self._unsent[:-_KEPT]


def status_line(pulses: Sequence[Pulse], *, ends: bool = False) -> str:
    """What the daemon does, for a person."""
    runs, agents = sum(pulse.runs for pulse in pulses), sum(pulse.agents for pulse in pulses)
    where = pulses[0].root if len(pulses) == 1 else _counted(len(pulses), "project")
    if ends:
        return f"ending {_counted(runs, 'run')} of {where}" if runs else "ending"
    if not pulses:
        return "serving no project"
    at_work = f"{_counted(runs, 'run')} with {_counted(agents, 'process', 'processes')}" if runs else "no run"
    return f"serving {where}: {at_work}"


def _counted(number: int, one: str, more: str | None = None) -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _turns(pulses: Sequence[Pulse]) -> dict[str, int]:
    return {pulse.root: pulse.turns for pulse in pulses}


def _standing(pulses: Sequence[Pulse], before: dict[str, int]) -> list[str]:
    """Whose watcher has not turned since."""
    return [pulse.root for pulse in pulses if pulse.turns == before.get(pulse.root)]


def _bound(address: str) -> str:
    return "\0" + address[1:] if address.startswith("@") else address
