"""An event of a run for programs: one JSON object on one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.service import as_json
from sidecar.service.looking import moment

if TYPE_CHECKING:
    from sidecar.model.events import RunEvent
    from sidecar.store.journal import Event

_INSIDE = frozenset({"thread", "outcome", "boot"})  # what a resume needs, and nobody else understands


def line(event: RunEvent | Event) -> str:
    """With its newline."""
    data = {name: value for name, value in event.data.items() if name not in _INSIDE}
    shown = {"run_id": event.run_id, "seq": event.seq, "at": moment(event.at), "kind": event.kind, "data": data}
    return as_json.text(shown) + "\n"
