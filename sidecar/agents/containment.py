"""Which of the three containments holds an owner's agents, why not a better one, and what it cannot catch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Literal

from sidecar.agents import cgroup
from sidecar.agents.lineage import ProcessTable, ProcTable
from sidecar.agents.portable_table import PortableTable
from sidecar.errors import AgentFailed, ConfigError

Name = Literal["cgroup", "reaper", "sweep"]
Setting = Literal["auto", "cgroup", "reaper", "sweep"]
_PROC = "/proc/self/stat"

_CANNOT_CATCH: dict[Name, str] = {
    "cgroup": "work handed to a service outside (docker, systemd-run, at, cron); a root agent's process that moves "
    "itself to another cgroup and also drops its environment and its limits",
    "reaper": "an orphan that dropped its session, its environment and its limits, as long as other agents of the same "
    "owner run (it is ended with the last of them, or with the owner); work handed to a service outside (docker, "
    "systemd-run, at, cron); programs that run as another user (sudo), which may not be signalled",
    "sweep": "a process that left its parent and its session and dropped its environment before it was first seen; "
    "work handed to a service outside; programs that run as another user",
}


@dataclass(frozen=True, slots=True)
class Containment:
    """The choice, made once per owner."""

    name: Name
    base: str | None = None  # the cgroup below which each agent gets its own

    def new_group(self, agent_id: str) -> str | None:
        """A cgroup of its own for an agent, where that is the containment."""
        if self.base is None:
            return None
        try:
            return cgroup.create(self.base, agent_id)
        except OSError as error:
            raise AgentFailed(f"no cgroup can be made below {self.base}: {error.strerror}") from None

    def table(self) -> ProcessTable:
        """The process table that goes with it."""
        return PortableTable() if self.name == "sweep" else ProcTable()


@dataclass(frozen=True, slots=True)
class ContainmentReport:
    """What `doctor` shows."""

    name: Name
    forced: bool
    why_not_better: tuple[tuple[Name, str], ...]
    cannot_catch: str


def choose(setting: Setting = "auto") -> Containment:
    """The best that works here, or the one that was asked for."""
    _refuse_blind()
    missing = _missing(setting)
    if setting == "auto":
        name = next(name for name in _names() if name not in missing)
        return _of(name)
    if setting in missing:
        raise ConfigError(f"containment {setting!r} cannot be had: {missing[setting]}; `auto` takes the best there is")
    return _of(setting)


def report(setting: Setting = "auto") -> ContainmentReport:
    """Which containment is used, why not a better one, and what it cannot catch."""
    name = choose(setting).name
    missing = _missing("auto")
    better = _names()[: _names().index(name)]
    why = tuple((other, missing.get(other, f"the setting asks for {name!r}")) for other in better)
    return ContainmentReport(name, setting != "auto", why, _CANNOT_CATCH[name])


def _refuse_blind() -> None:
    """On Linux every containment, and psutil too, finds the processes to end in /proc."""
    if sys.platform == "linux" and not os.path.exists(_PROC):
        raise AgentFailed(
            "no agent or command can be started here: /proc is not mounted, and without it processes cannot be found "
            "to be ended; mount it (mount -t proc proc /proc)"
        )


def _names() -> tuple[Name, ...]:
    return ("cgroup", "reaper", "sweep")


def _of(name: Name) -> Containment:
    return Containment(name, cgroup.own() if name == "cgroup" else None)


def _missing(setting: Setting) -> dict[Name, str]:
    """What cannot be had, and why."""
    missing: dict[Name, str] = {}
    if sys.platform != "linux":
        missing["cgroup"] = missing["reaper"] = "only Linux has it"
        return missing
    if setting in ("auto", "cgroup"):
        reason = cgroup.why_not()
        if reason is not None:
            missing["cgroup"] = reason
    return missing
