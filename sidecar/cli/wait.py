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
_OWNERLESS_S = 10.0  # an owner that comes up takes a few seconds; without one, nobody consumes the signal
_LOOK_EVERY_S = 0.02
_GONE_FOR_S = 2.0  # `clear` moves a signal aside for a moment: only one that stays away was taken back


def for_receipt(
    target: Target, kind: Kind, signal_id: str, limit_s: float | None, *, was_open: bool, as_json: bool
) -> int:
    """Wait, tell, and give the exit code. A stop without a limit waits as long as an iteration takes.

    `was_open`: some run was, just before the signal was written. If it has ended without an answer, it ended otherwise.
    """
    if limit_s is None and kind == "abort":
        limit_s = _ABORT_LIMIT_S
    deadline = time.monotonic() + limit_s if limit_s is not None else float("inf")
    path = files.path_of(target.directory, kind)
    no_receipt: dict[str, object] = {"signal": kind, "signal_id": signal_id, "path": path, "state": None, "runs": []}
    last_seen = last_live = time.monotonic()
    while True:
        # In this order: what is written between the looks is found by a later one.
        governed, live = target.open_runs(), target.live_runs()
        standing = files.read(target.directory, kind)
        stands = standing is not None and standing.signal_id == signal_id
        receipt = receipts.read(path)
        mine = receipt if receipt and receipt["signal_id"] == signal_id else None
        if mine and mine["state"] != "received" and not stands:
            return _tell(mine, as_json=as_json)
        if not governed:
            return _nobody(target, mine, no_receipt, stands=stands, was_open=was_open, as_json=as_json)
        was_open = True
        now = time.monotonic()
        last_seen = now if stands or mine else last_seen
        last_live = now if live else last_live
        if now - last_seen > _GONE_FOR_S:
            why = f"the signal was taken back or replaced; open: {', '.join(governed)}"
            return _not_proven(mine or no_receipt, why, as_json=as_json)
        if now > min(deadline, last_live + _OWNERLESS_S):
            why = _late(kind, governed, live, now - last_live, limit_s)
            return _not_proven(mine or no_receipt, why, as_json=as_json)
        time.sleep(_LOOK_EVERY_S)


def _late(kind: Kind, governed: list[str], live: list[str], ownerless_s: float, limit_s: float | None) -> str:
    named = ", ".join(governed)
    if not live:
        return f"no process has executed {named} for {ownerless_s:.0f} s; the signal stands, and ends what goes on"
    verb = "stopped" if kind == "stop" else "proven dead"
    return f"not {verb} within {limit_s:g} s: {named}; the signal still stands"


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
    was_open: bool,
    as_json: bool,
) -> int:
    """No open run is left to take it: there was none, or it ended otherwise."""
    if receipt and receipt["state"] != "received":
        return _tell(receipt, as_json=as_json)
    kind = no_receipt["signal"]
    if was_open and (stands or kind == "abort"):  # a run that ends by itself takes a stop along; nothing else proves
        rest = "the signal still stands" if stands else "nothing proves that its processes are gone"
        return _not_proven(receipt or no_receipt, f"the run ended without a receipt; {rest}", as_json=as_json)
    if as_json:
        say(json.dumps(no_receipt))
    else:
        rest = "the signal waits for the next one" if stands and kind == "stop" else "there is nothing to wait for"
        say(f"No run is open in {target.scope} {target.name}: {rest}")
    return WRITTEN


def _not_proven(told: Mapping[str, object], why: str, *, as_json: bool) -> int:
    if as_json:
        say(json.dumps(told))
    print(why, file=sys.stderr)
    return NOT_PROVEN
