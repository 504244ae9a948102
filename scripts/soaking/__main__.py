"""`scripts/soak`: storm, audit, report; the exit code says whether every promise held.

The disk that becomes full is a small one of the project's own, and the clock that is stepped is one that only the
processes of the storm see (`clock.c`): the machine and whoever else uses it notice nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import anyio

from soaking import clock
from soaking.auditor import STORM, Findings, audit, marked

_DISK_MB = 256
_DISK_MB_A_SECOND = 0.6  # what a storm leaves in journal and logs
_PLACE = "SOAK_PLACE"  # once we are inside: under the clock of the storm, and where its disk is seen
_LEFT_OUT = "SOAK_LEFT_OUT"  # what this machine cannot do, and why
_DISK, _CLOCK = "full disks", "clock steps"


def main() -> int:
    """0: every promise held. 1: one did not."""
    options = _options()
    if options.audit:
        return _report(options, audit(Path(options.audit)), [])
    if _PLACE not in os.environ:
        return _again(options)
    left_out: dict[str, str] = json.loads(os.environ[_LEFT_OUT])
    place = Path(os.environ[_PLACE])
    mark = uuid.uuid4().hex
    try:
        told = _storm(options, place, mark, left_out)
        return _report(options, _settled(place), [f"{name}: left out, {why}" for name, why in left_out.items()], told)
    finally:
        if options.keep:
            shutil.copytree(place, options.keep, ignore=_sockets, dirs_exist_ok=True)
        for process in marked(mark):  # a storm that failed leaves nobody behind, either
            process.kill()


def _sockets(directory: str, names: list[str]) -> list[str]:
    """What cannot be copied."""
    return [name for name in names if stat.S_ISSOCK(os.lstat(os.path.join(directory, name)).st_mode)]


def _storm(options: argparse.Namespace, place: Path, mark: str, left_out: dict[str, str]) -> dict[str, Any]:
    """What it tells; its place has the rest."""
    from soaking.storm import Storm, Weather  # the auditor alone needs nothing of sidecar

    weather = Weather(
        seconds_s=options.seconds,
        seed=options.seed,
        workspaces=options.workspaces,
        runs=options.runs,
        kill_every_s=options.kill_every,
        signal_every_s=options.signal_every,
        disk=_DISK not in left_out,
        clock=_CLOCK not in left_out,
    )
    began = time.monotonic()
    storm = Storm(place, mark, weather)
    told = anyio.run(storm.run)
    storm.soaked.close()
    told["total_s"] = time.monotonic() - began
    (place / STORM).write_text(json.dumps(told, indent=1), encoding="utf-8")
    return told


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the storm lasts")
    parser.add_argument("--seed", type=int, default=1, help="what is done; when it happens, the machine has a say in")
    parser.add_argument("--workspaces", type=int, default=3)
    parser.add_argument("--runs", type=int, default=8, help="how many are open at once")
    parser.add_argument(
        "--kill-every", type=float, default=4.0, metavar="S", help="`kill -9` of the daemon, on average"
    )
    parser.add_argument("--signal-every", type=float, default=0.25, metavar="S", help="a signal, on average")
    parser.add_argument("--no-disk", action="store_true", help="no windows in which the disk is full")
    parser.add_argument("--no-clock", action="store_true", help="no steps of the wall clock")
    parser.add_argument("--json", metavar="FILE", help="the report for programs")
    parser.add_argument("--keep", metavar="DIR", help="keep journal, receipts and effects here")
    parser.add_argument("--audit", metavar="DIR", help="only audit what --keep kept")
    return parser.parse_args()


def _place() -> Path:
    return Path(tempfile.mkdtemp(prefix="sidecar-soak-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def _around() -> list[str]:
    """What makes a mount namespace here, if anything does."""
    for around in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = [*around, "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
        if shutil.which("unshare") and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return around
    return []


def _again(options: argparse.Namespace) -> int:
    """This program once more, with a small disk and a clock that can be stepped: nobody else sees them."""
    place = _place()
    (place / "project").mkdir()
    inside, left_out = [sys.executable, "-m", "soaking", *sys.argv[1:]], {}
    around = [] if options.no_disk else _around()
    if around:
        size_mb = int(_DISK_MB + _DISK_MB_A_SECOND * options.seconds)
        mount = f'mount -t tmpfs -o size={size_mb}m none "$1"; shift; exec "$@"'
        inside = [*around, "sh", "-euc", mount, "sh", str(place / "project"), *inside]
    else:
        left_out[_DISK] = "as asked" if options.no_disk else "there is no mount namespace of our own"
    try:
        variables = "as asked" if options.no_clock else clock.prepared(place)
        if isinstance(variables, str):
            left_out[_CLOCK], variables = variables, {}
        environment = {**os.environ, **variables, _PLACE: str(place), _LEFT_OUT: json.dumps(left_out)}
        return subprocess.run(inside, env=environment, check=False).returncode
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _settled(place: Path, within_s: float = 20.0) -> Findings:
    """Owners that were told of their last run's end go by themselves: they have a moment for that."""
    deadline = time.monotonic() + within_s
    while True:
        findings = audit(place)
        if not findings.counts["survivors"] or time.monotonic() > deadline:
            return findings
        time.sleep(0.1)


def _report(
    options: argparse.Namespace, findings: Findings, notes: list[str], told: dict[str, Any] | None = None
) -> int:
    broken = {promise: examples for promise, examples in findings.broken.items() if examples}
    told = told or {}
    report = {
        "seed": options.seed,
        "rounds": told.get("rounds"),
        "signals": findings.counts["signals"],
        "outcomes": dict(findings.outcomes),
        "kills": told.get("kills"),
        "restarts": told.get("restarts"),
        "owner_kills": told.get("owner_kills"),
        "full_disks": told.get("full_disks"),
        "clock_steps": told.get("clock_steps"),
        "survivors": findings.counts["survivors"],
        "lost": sum(findings.outcomes[name] for name in ("lost", "left")) + len(broken.get("no step lost", [])),
        "repeated": len(broken.get("no step repeated", [])),
        "counts": dict(findings.counts),
        "storm_s": told.get("storm_s"),
        "total_s": told.get("total_s"),
        "daemon": told.get("figures"),
        "refused": len(told.get("refused", [])),
        "unwritten": told.get("unwritten"),
        "notes": notes,
        "broken": broken,
    }
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, value in report.items():
        if name != "broken":
            print(f"{name}: {json.dumps(value)}")
    for promise, examples in broken.items():
        print(f"BROKEN {promise}: {len(examples)} times", *examples[:10], sep="\n    ")
    print("every promise held" if not broken else "promises were broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
