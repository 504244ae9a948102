"""What a supervised process is to everyone else: how it is known, why it was ended, what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EndReason = Literal[
    "abort", "timeout", "stall", "budget", "stage_gate", "redirect", "sibling_failed", "shutdown", "internal_error"
]
# An agent that nobody asked to end has exited.
Reason = EndReason | Literal["exited"]
Rung = Literal["exited", "stdin", "term", "kill"]
RUNGS: tuple[Rung, ...] = ("exited", "stdin", "term", "kill")


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """What the journal keeps, so that a later sidecar finds the agent if its owner dies."""

    agent_id: str
    run_id: str | None
    pid: int
    started: float  # as the process table tells it; together with pid and boot_id it names one process for ever
    boot_id: str
    marker: str
    tag: int
    group: str | None = None  # its cgroup, where it has one


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """One process of the tree and the rung of the ladder that it took; a row of a receipt's `processes`."""

    run_id: str | None
    pid: int
    started_at: str
    program: str  # its name, never its arguments: they may hold a prompt
    rung: Rung
    ms_to_death: float


@dataclass(frozen=True, slots=True)
class AgentEnded:
    """The one terminal event of an agent."""

    agent_id: str
    run_id: str | None
    task_id: str | None
    pid: int | None
    reason: Reason
    exit_code: int | None  # negative: the signal that ended it; None: nobody could tell
    rung: Rung
    duration_s: float
    tail: str
    processes: tuple[EndedProcess, ...]
    survivors: int  # what the last reading of the process table found
    problem: str | None = None  # what went wrong beside it, such as a log that could not be written


def worst(rungs: list[Rung]) -> Rung:
    """The lowest rung that any of them needed."""
    return max(rungs, key=RUNGS.index, default="exited")
