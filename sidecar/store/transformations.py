"""How a run's computed fields were computed: the trail stays as long as the run does, whoever executed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.store import sql
from sidecar.store.sealed import dump, load, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.store.db import Database
    from sidecar.store.journal import Mask

_AT_ONCE = 100  # rows; each has what one transaction of the journal brought


class Transformations:
    """Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database, mask_of: Callable[[str], Mask | None] = lambda _: None) -> None:
        """`mask_of`: the mask of a run, for what is told of it here."""
        self._db = database
        self._mask_of = mask_of

    def told(self, run_id: str, traces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """As everybody may see them."""
        mask = self._mask_of(run_id) if traces else None
        return list(traces) if mask is None else [mask.masked_event(one) for one in traces]

    def add(self, run_id: str, traces: Sequence[dict[str, Any]]) -> None:
        """What was computed since the last call. Those with `applied` false were undone, and are not counted."""
        if not traces:
            return
        applied = sum(bool(trace["applied"]) for trace in traces)
        with self._db.transaction(durable=False):
            number: int = self._db.rows(sql.LAST_TRANSFORMATIONS, (run_id,))[0][0] + 1
            columns = (run_id, number, applied, dump(self.told(run_id, traces)))
            self._db.execute(sql.ADD_TRANSFORMATIONS, (*columns, seal(*columns)), f"run {run_id}")

    def total(self, run_id: str) -> int:
        """How many there were."""
        return int(self._db.rows(sql.TOTAL_TRANSFORMATIONS, (run_id,))[0][0])

    def newest(self, run_id: str, most: int, field: str | None = None) -> list[dict[str, Any]]:
        """The last ones, or the last ones of a field, in the order in which they happened."""
        found: list[dict[str, Any]] = []
        containing = "" if field is None else f'"field":{dump(field)}'
        before = None
        while len(found) < most:
            rows = self._db.rows(sql.NEWEST_TRANSFORMATIONS, (run_id, before, before, containing, _AT_ONCE))
            for *columns, sealed in rows:
                if seal(*columns) != sealed:
                    raise self._db.damaged(f"transformations {columns[1]} of run {run_id}")
                found += reversed([one for one in load(columns[3]) if field in (None, one["field"])])
            if len(rows) < _AT_ONCE:
                break
            before = rows[-1][1]
        return found[:most][::-1]
