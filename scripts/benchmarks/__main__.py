"""`scripts/bench`: run the measurements, print the table, save it if asked."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import agents, boundary, catalog, engine, mcp, report, startup, state, store, validating, watching

SUBJECTS = {
    "startup": startup.measure,
    "boundary": boundary.measure,
    "watching": watching.measure,
    "agents": agents.measure,
    "state": state.measure,
    "catalog": catalog.measure,
    "validating": validating.measure,
    "store": store.measure,
    "engine": engine.measure,
    "mcp": mcp.measure,
}


def main() -> None:
    """Measure what was asked for. Timings never fail: they are there to be read."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure sidecar's speed as ratios to baselines."
    )
    parser.add_argument("subject", nargs="*", choices=[[], *SUBJECTS], help=f"default: all of {', '.join(SUBJECTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a rough figure in seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the figures as JSON too")
    options = parser.parse_args()
    figures: list[report.Figure] = []
    for subject in options.subject or SUBJECTS:
        measured = SUBJECTS[subject](quick=options.quick)
        print("\n".join(report.lines(measured)), end="\n\n", flush=True)
        figures += measured
    if options.json:
        report.save(figures, options.json)
    missed = [figure.name for figure in figures if figure.within is False]
    print(f"{len(missed)} of {len(figures)} figures miss what is wanted{': ' if missed else ''}{'; '.join(missed)}")


if __name__ == "__main__":
    main()
