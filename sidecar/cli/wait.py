"""`--wait`: follow one signal until its receipt proves what became of it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from sidecar.cli.stop_abort import NOT_PROVEN, WRITTEN
from sidecar.signals import files, receipts

if TYPE_CHECKING:
    from sidecar.signals.files import Kind
    from sidecar.signals.receipts import Receipt
    from sidecar.signals.targets import Target

_ABORT_LIMIT_S = 10.0  # the ladder takes 7 s at worst
_LOOK_EVERY_S = 0.02


def for_receipt(target: Target, kind: Kind, signal_id: str, limit_s: float | None, *, as_json: bool) -> int:
    """Wait, tell, and give the exit code. A stop without a limit waits as long as an iteration takes."""
    if limit_s is None and kind == "abort":
        limit_s = _ABORT_LIMIT_S
    deadline = time.monotonic() + limit_s if limit_s is not None else float("inf")
    path = files.path_of(target.directory, kind)
    while True:
        # In this order: what is written between the looks is found by a later one.
        live = target.live_runs()
        standing = files.read(target.directory, kind)
        stands = standing is not None and standing.signal_id == signal_id
        receipt = receipts.read(path)
        mine = receipt if receipt and receipt["signal_id"] == signal_id else None
        if mine and mine["state"] != "received" and not stands:
            return _tell(mine, as_json=as_json)
        if not live:
            return _nobody(target, kind, mine, stands=stands, as_json=as_json)
        if time.monotonic() > deadline:
            return _too_late(kind, live, limit_s or 0.0, mine, as_json=as_json)
        time.sleep(_LOOK_EVERY_S)


def _tell(receipt: Receipt, *, as_json: bool) -> int:
    proven = receipt["state"] == "applied" and receipt["survivors"] == 0
    if as_json:
        print(json.dumps(receipt))
    else:
        runs = ", ".join(f"run {outcome['run_id']} {outcome['status']}" for outcome in receipt["runs"])
        print(f"{receipt['state'].capitalize()}: {runs or 'to no run'}")
        rungs = Counter(process["rung"] for process in receipt["processes"])
        how = ", ".join(f"{count} {rung}" for rung, count in sorted(rungs.items()))
        ended = f"{len(receipt['processes'])} ({how})" if how else "0"
        print(f"Processes ended: {ended}, survivors: {receipt['survivors']}")
    return WRITTEN if proven else NOT_PROVEN


def _nobody(target: Target, kind: Kind, receipt: Receipt | None, *, stands: bool, as_json: bool) -> int:
    """No live run is left to hear it: there was none, or it ended by itself, or it died."""
    if receipt and receipt["state"] != "received":
        return _tell(receipt, as_json=as_json)
    if as_json:
        print(json.dumps({"signal": kind, "path": files.path_of(target.directory, kind), "state": None, "runs": []}))
    else:
        rest = "the signal waits for the next one" if stands and kind == "stop" else "there is nothing to wait for"
        print(f"No run is live in {target.scope} {target.name}: {rest}")
    return WRITTEN


def _too_late(kind: Kind, live: list[str], limit_s: float, receipt: Receipt | None, *, as_json: bool) -> int:
    if as_json and receipt:
        print(json.dumps(receipt))
    verb = "stopped" if kind == "stop" else "proven dead"
    print(f"not {verb} within {limit_s:g} s: {', '.join(live)}; the signal still stands", file=sys.stderr)
    return NOT_PROVEN
