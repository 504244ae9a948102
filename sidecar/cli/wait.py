"""`--wait`: follow one signal until its receipt proves what became of it."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from sidecar.cli.outcome import NOT_PROVEN, WRITTEN, say
from sidecar.signals import files, receipts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.signals.files import Kind
    from sidecar.signals.receipts import Receipt
    from sidecar.signals.targets import Target

_ABORT_LIMIT_S = 10.0  # the ladder takes 7 s at worst
_LOOK_EVERY_S = 0.02
_GONE_FOR_S = 2.0  # `clear` moves a signal aside for a moment: only one that stays away was taken back


def for_receipt(
    target: Target, kind: Kind, signal_id: str, limit_s: float | None, *, was_live: bool, as_json: bool
) -> int:
    """Wait, tell, and give the exit code. A stop without a limit waits as long as an iteration takes.

    `was_live`: some run was, just before the signal was written. If it is gone without an answer, it has died.
    """
    if limit_s is None and kind == "abort":
        limit_s = _ABORT_LIMIT_S
    deadline = time.monotonic() + limit_s if limit_s is not None else float("inf")
    path = files.path_of(target.directory, kind)
    no_receipt: dict[str, object] = {"signal": kind, "signal_id": signal_id, "path": path, "state": None, "runs": []}
    last_seen = time.monotonic()
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
            return _nobody(target, mine, no_receipt, stands=stands, was_live=was_live, as_json=as_json)
        was_live = True
        now = time.monotonic()
        last_seen = now if stands or mine else last_seen
        if now - last_seen > _GONE_FOR_S:
            why = f"the signal was taken back or replaced; live: {', '.join(live)}"
            return _not_proven(mine or no_receipt, why, as_json=as_json)
        if now > deadline:
            verb = "stopped" if kind == "stop" else "proven dead"
            late = f"not {verb} within {limit_s:g} s: {', '.join(live)}; the signal still stands"
            return _not_proven(mine or no_receipt, late, as_json=as_json)
        time.sleep(_LOOK_EVERY_S)


def _tell(receipt: Receipt, *, as_json: bool) -> int:
    proven = receipt["state"] == "applied" and receipt["survivors"] == 0
    if as_json:
        say(json.dumps(receipt))
    else:
        runs = ", ".join(f"run {outcome['run_id']} {outcome['status']}" for outcome in receipt["runs"])
        say(f"{receipt['state'].capitalize()}: {runs or 'to no run'}")
        rungs = Counter(process["rung"] for process in receipt["processes"])
        how = ", ".join(f"{count} {rung}" for rung, count in sorted(rungs.items()))
        ended = f"{len(receipt['processes'])} ({how})" if how else "0"
        say(f"Processes ended: {ended}, survivors: {receipt['survivors']}")
    return WRITTEN if proven else NOT_PROVEN


def _nobody(
    target: Target,
    receipt: Receipt | None,
    no_receipt: Mapping[str, object],
    *,
    stands: bool,
    was_live: bool,
    as_json: bool,
) -> int:
    """No live run is left to hear it: there was none, or it ended by itself, or it died."""
    if receipt and receipt["state"] != "received":
        return _tell(receipt, as_json=as_json)
    kind = no_receipt["signal"]
    if was_live and (stands or kind == "abort"):  # a run that ends by itself takes a stop along; nothing else proves
        rest = "the signal still stands" if stands else "nothing proves that its processes are gone"
        return _not_proven(receipt or no_receipt, f"the run ended without a receipt; {rest}", as_json=as_json)
    if as_json:
        say(json.dumps(no_receipt))
    else:
        rest = "the signal waits for the next one" if stands and kind == "stop" else "there is nothing to wait for"
        say(f"No run is live in {target.scope} {target.name}: {rest}")
    return WRITTEN


def _not_proven(told: Mapping[str, object], why: str, *, as_json: bool) -> int:
    if as_json:
        say(json.dumps(told))
    print(why, file=sys.stderr)
    return NOT_PROVEN
