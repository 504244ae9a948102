"""The last turn of an agent in a run, as the journal has it: what it said and cost, and how its process ended."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.agents.adapters.account import json_in
from sidecar.model import events as kinds
from sidecar.service import adhoc
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.store.db import Database
    from sidecar.store.journal import Event

_PROCESS = ("pid", "exit_code", "rung", "survivors")


def of_run(database: Database, run_id: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run that is one turn; `state`: as it is now. Nothing where no agent was started."""
    events = Journal(database).events(run_id)
    ended = next((one for one in reversed(events) if one.kind == kinds.AGENT_ENDED), None)
    turn = next((one for one in reversed(events) if one.kind == kinds.TURN_ENDED), None)
    found: dict[str, Any] = {}
    if turn is not None:
        found = {key: turn.data[key] for key in ("session_id", "tokens", "cost_usd")}
        text = found["text"] = str(turn.data.get("text") or state.get(adhoc.RESULT) or "")
        structured = turn.data.get("structured")
        found["structured"] = json_in(text) if structured is None else json.loads(structured)
    return found | (_process(ended) if ended is not None else {})


def _process(ended: Event) -> dict[str, Any]:
    data = ended.data
    return {
        **{key: data[key] for key in _PROCESS},
        "ended": data["reason"],
        "duration_s": round(data["duration_s"], 3),
    }
