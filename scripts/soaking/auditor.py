"""The auditor: reads journal, receipts, effects and process table after a storm, and says which promise was broken.

It shares no code with what it audits: the database is read as any SQLite file, signals as the storm recorded them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import psutil

STORM = "storm.json"
_SLACK_S = 5.0  # between a look at the files and what the journal then says, on a machine that is busy
_CLOSING_S = 3.0  # from the end of a run in the journal to its last look at its own directory
_RSS_GROWTH_MB = 8.0
_ENDINGS = ("applied", "expired", "refused", "cancelled")


@dataclass(slots=True)
class Findings:
    """What was counted, and every promise that was not kept."""

    counts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def say(self, promise: str, what: str) -> None:
        """One that was broken."""
        self.broken[promise].append(what)


class Evidence:
    """What a storm left behind."""

    def __init__(self, place: Path) -> None:
        self.own = place / "project" / ".swissarmyhammer"
        self.storm: dict[str, Any] = json.loads((place / STORM).read_text(encoding="utf-8"))
        self._root = place / "project"
        lines = (place / "effects").read_text(encoding="utf-8").splitlines()
        self.effects = [tuple(line.split()) for line in lines]
        journal = sqlite3.connect(self.own / "sidecar.db")
        try:
            self.runs = {
                row[0]: {"status": row[1], "start": row[2], "workspace": json.loads(row[3])}
                for row in journal.execute("SELECT run_id, status, start, workspace FROM runs")
            }
            self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
            query = "SELECT run_id, seq, start, kind, closes, data FROM events ORDER BY run_id, seq"
            for run_id, seq, start, kind, closes, data in journal.execute(query):
                event = {"seq": seq, "start": start, "kind": kind, "closes": closes, **json.loads(data)}
                self.events[run_id].append(event | self._witnessed(run_id, seq))
            self.steps = list(journal.execute("SELECT run_id, key, attempt, status FROM steps"))
            self.applied: dict[str, list[tuple[str, int]]] = defaultdict(list)
            for run_id, signal_id, start in journal.execute("SELECT run_id, signal_id, start FROM signals"):
                self.applied[signal_id].append((run_id, start))
            self.open_agents = list(journal.execute("SELECT agent_id, run_id FROM agents WHERE ended IS NULL"))
        finally:
            journal.close()

    def _witnessed(self, run_id: str, seq: int) -> dict[str, float]:
        """When an event came, at the earliest and at the latest. Its own time is that of a clock that is stepped."""
        looks = self.storm["witnessed"].get(run_id, [])
        found = bisect_left(looks, seq, key=lambda look: look[0])
        _, after, by = looks[found] if found < len(looks) else (0, -inf, inf)
        return {"after": after, "by": by}

    def ended(self, run_id: str, start: int) -> float:
        """When one start of a run had its end, at the earliest."""
        ends = (e["after"] for e in self.events[run_id] if e["start"] == start and e["kind"] == "run_ended")
        return min(ends, default=-inf)

    def is_there(self, path: str) -> bool:
        """Whether a file of the storm is still there, also in a copy of what it left."""
        return os.path.lexists(self._root / os.path.relpath(path, self.storm["root"]))


def audit(place: Path) -> Findings:
    """Every promise, from what is on the disk and in the process table now."""
    evidence, findings = Evidence(place), Findings()
    audit_runs(evidence, findings)
    audit_steps(evidence, findings)
    audit_signals(evidence, findings)
    audit_obedience(evidence, findings)
    audit_processes(evidence, findings)
    audit_files(evidence, findings)
    audit_daemon(evidence, findings)
    return findings


# --- runs


def audit_runs(evidence: Evidence, findings: Findings) -> None:
    """Each start has one end; left alone, every run completes."""
    for run_id, run in evidence.runs.items():
        events = evidence.events[run_id]
        findings.counts["starts"] += run["start"]
        for start in range(1, run["start"] + 1):
            begun = [e for e in events if e["start"] == start and e["kind"] in ("run_started", "run_resumed")]
            ended = [e for e in events if e["start"] == start and e["kind"] == "run_ended"]
            findings.counts[f"ended {ended[0]['status'] if ended else 'never'}"] += 1
            # A signal may end a start before anybody executes it: then its end is all there is.
            unopened = len([e for e in events if e["start"] == start]) == 1 and bool(ended)
            if (len(begun), len(ended)) != (1, 1) and not (unopened and ended[0]["status"] in ("stopped", "aborted")):
                findings.say("one end a start", f"{run_id} start {start}: {len(begun)} begun, {len(ended)} ended")
        if [e["seq"] for e in events] != list(range(1, len(events) + 1)):
            findings.say("one end a start", f"{run_id}: its events have gaps")
        if run["status"] != "completed":
            findings.say("runs complete", f"{run_id} is {run['status']}")
    findings.counts["runs"] = len(evidence.runs)
    for run_id in evidence.storm["unfinished"]:
        findings.say("runs complete", f"{run_id} did not complete in the calm")


# --- steps


def audit_steps(evidence: Evidence, findings: Findings) -> None:
    """What the journal calls completed was done in the world, once; nothing of it was begun again."""
    attempts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for run_id, key, _, status in evidence.steps:
        attempts[run_id, key].append(status)
    begun: dict[tuple[str, str], list[str]] = defaultdict(list)
    done: Counter[tuple[str, str]] = Counter()
    for what, run_id, key, pid in evidence.effects:
        if what == "begin":
            begun[run_id, key].append(pid)
        done[run_id, key] += what == "done"
    for run_id, keys in evidence.storm["plans"].items():
        if run_id not in evidence.runs:
            findings.say("no step lost", f"{run_id} is not in the journal")
            continue
        for key in keys:
            told = attempts[run_id, key]
            findings.counts["steps"] += 1
            findings.counts["attempts"] += len(told)
            if "completed" not in told or not done[run_id, key]:
                findings.say("no step lost", f"{run_id} {key}: {told}, done {done[run_id, key]} times")
            _audit_repeats(evidence, findings, (run_id, key), begun[run_id, key], len(told))


def _audit_repeats(
    evidence: Evidence, findings: Findings, step: tuple[str, str], pids: list[str], attempts: int
) -> None:
    run_id, key = step
    events = [e for e in evidence.events[run_id] if e.get("step") == key]
    completed = [e["seq"] for e in events if e["kind"] == "step_completed"]
    started = {str(e["pid"]): e["seq"] for e in events if e["kind"] == "agent_started"}
    last = min(completed, default=1 << 60)
    again = [pid for pid in pids if started.get(pid, 0) > last]
    # One that was begun just before its owner was killed is not in the journal, but its attempt is.
    unknown = [pid for pid in pids if pid not in started]
    if len(completed) > 1 or again or len(unknown) > attempts - len(started):
        findings.say(
            "no step repeated",
            f"{run_id} {key}: completed {len(completed)} times, begun {len(pids)} times in {attempts}, {again} after",
        )


# --- signals


def audit_signals(evidence: Evidence, findings: Findings) -> None:
    """Each signal has exactly one outcome."""
    for number, written in enumerate(evidence.storm["signals"]):
        outcome = _outcome(evidence, written)
        findings.outcomes[outcome] += 1
        findings.counts["signals"] += 1
        where = f"{number} {written['kind']} by {written['manner']} in {written['path']} at {written['written_at']:.3f}"
        if outcome in ("lost", "left"):
            findings.say("one outcome a signal", f"{outcome}: {where} {written['ids']}")
        for run_id, start in _applications(evidence, written):
            at, gone = evidence.ended(run_id, start), written["gone_at"]
            if written["kind"] == "stop" and gone is not None and at > gone + _SLACK_S:
                findings.say(
                    "one outcome a signal", f"taken back, and applied to {run_id} {at - gone:.1f} s later: {where}"
                )
            if written["manner"] == "expired":
                findings.say("one outcome a signal", f"expired, and applied to {run_id}: {where}")


def _applications(evidence: Evidence, written: dict[str, Any]) -> list[tuple[str, int]]:
    return [application for signal_id in written["ids"] for application in evidence.applied.get(signal_id, [])]


def _outcome(evidence: Evidence, written: dict[str, Any]) -> str:
    if _applications(evidence, written):
        return "applied"
    receipts = [evidence.storm["receipts"][i] for i in written["ids"] if i in evidence.storm["receipts"]]
    # A run that was interrupted goes on by itself: to it, nothing was applied.
    states = [r["state"] for r in receipts if r["state"] in _ENDINGS and not _only_interrupted(r)]
    if states:
        return str(states[0])
    if written["gone_by"] is not None:
        return "cancelled"
    run_id = os.path.basename(os.path.dirname(written["path"]))
    ends = [e for e in evidence.events.get(run_id, []) if e["kind"] == "run_ended"]
    if evidence.is_there(written["path"]):
        return "too late" if _is_completed(evidence, run_id) and ends[-1]["after"] < written["stood_at"] else "left"
    # A run that ends otherwise removes what stands in its own directory, once the journal has its end.
    missed_at = inf if written["missed_at"] is None else written["missed_at"]
    since = written["written_at"] - _CLOSING_S
    return "over" if any(since < end["by"] and end["after"] <= missed_at for end in ends) else "lost"


def _only_interrupted(receipt: dict[str, Any]) -> bool:
    return receipt["state"] == "applied" and all(run["status"] == "interrupted" for run in receipt["runs"])


def _is_completed(evidence: Evidence, run_id: str) -> bool:
    return run_id in evidence.runs and evidence.runs[run_id]["status"] == "completed"


def audit_obedience(evidence: Evidence, findings: Findings) -> None:
    """No run goes on under a signal that stood there after its start and was not taken away."""
    spans = [
        (run_id, start, [e for e in evidence.events[run_id] if e["start"] == start])
        for run_id, run in evidence.runs.items()
        for start in range(1, run["start"] + 1)
    ]
    for written in evidence.storm["signals"]:
        if written["gone_by"] is not None or written["manner"] == "expired":
            continue
        at = written["stood_at"]
        for run_id, start, events in spans:
            during = events and events[0]["by"] < at - 1 and events[-1]["after"] > at + _SLACK_S
            if not during or not _governs(evidence, written, run_id):
                continue
            late = [e for e in events if e["after"] > at + _SLACK_S and _goes_on(e, written["kind"])]
            if late:
                what, after_s = late[-1].get("step", "its end"), late[-1]["after"] - at
                findings.say("signals are obeyed", f"{run_id} start {start}: {what} {after_s:.1f} s after {written}")


def _goes_on(event: dict[str, Any], kind: str) -> bool:
    """Whether it says that the run passed a boundary at which signals of this kind are taken."""
    if kind == "abort":
        ended = event["kind"] == "run_ended" and event["status"] not in ("aborted", "interrupted")
        return ended or event["kind"] in ("step_started", "iteration")
    return bool(event["kind"] == "iteration" or (event["kind"] == "step_started" and "/" not in event["step"]))


def _governs(evidence: Evidence, written: dict[str, Any], run_id: str) -> bool:
    directory = os.path.dirname(str(written["path"]))
    if written["governs"] == "project":
        return True
    return directory == str(evidence.runs[run_id]["workspace"]) or os.path.basename(directory) == run_id


# --- what is left


def audit_processes(evidence: Evidence, findings: Findings) -> None:
    """Nothing that came of the storm lives."""
    for process in marked(evidence.storm["mark"]):
        try:
            findings.say("no process left", f"{process.pid} {' '.join(process.cmdline())} (parent {process.ppid()})")
        except psutil.Error:  # it went while we looked
            continue
    findings.counts["survivors"] = len(findings.broken.get("no process left", []))


def marked(mark: str) -> list[psutil.Process]:
    """What carries the storm's mark and lives, but for ourselves."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("SOAK_MARK") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def audit_files(evidence: Evidence, findings: Findings) -> None:
    """No temporary file, no socket, no run that has ended and claims to be open."""
    for directory, _, names in os.walk(evidence.own):
        for name in names:
            path = os.path.join(directory, name)
            stale = name.endswith((".tmp", ".taken")) or stat.S_ISSOCK(os.lstat(path).st_mode)
            ended = evidence.runs.get(name, {}).get("status") not in ("pending", "running", "paused", "interrupted")
            if stale or (os.path.basename(directory) == "open" and ended):
                findings.say("no stale file", path)
    for agent_id, run_id in evidence.open_agents:
        findings.say("no stale file", f"the journal has agent {agent_id} of run {run_id} at work")


def audit_daemon(evidence: Evidence, findings: Findings) -> None:
    """It never died by itself, ended cleanly, and holds at the end what it held at the beginning."""
    storm = evidence.storm
    for death in storm["deaths"]:
        findings.say("the daemon lives", death)
    if storm["exit_code"] != 0:
        findings.say("the daemon lives", f"it ended with {storm['exit_code']}")
    figures = storm["figures"]
    if len(figures) < 2:
        return
    first, last = figures[0], figures[-1]
    for name, most in (("descriptors", 0.0), ("threads", 0.0), ("children", 0.0), ("rss_mb", _RSS_GROWTH_MB)):
        if last[name] > first[name] + most:
            findings.say("the daemon is flat", f"{name}: {[round(figure[name], 1) for figure in figures]}")
