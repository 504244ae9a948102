"""The agents that were started, so that a later sidecar finds those whose owner died; each of them ends once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sidecar.errors import StoreError
from sidecar.model.agent import AgentRecord
from sidecar.store import sql
from sidecar.store.sealed import dump, load, seal

if TYPE_CHECKING:
    from sidecar.model.agent import AgentEnded
    from sidecar.store.db import Database


class Agents:
    """Each call is a transaction, or a part of the one that is open; durable, since a process is at stake."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def started(self, record: AgentRecord) -> None:
        """It runs."""
        columns = (record.agent_id, record.run_id, dump(asdict(record)), None)
        with self._db.transaction():
            self._db.execute(sql.ADD_AGENT, (*columns, seal(*columns)), f"agent {record.agent_id}")

    def ended(self, agent_id: str, ended: AgentEnded | None = None) -> None:
        """Its tree is empty; None: that is all that is known, as after its owner's death."""
        told = dump(asdict(ended) if ended else {})
        with self._db.transaction():
            rows = self._db.rows(sql.AGENT, (agent_id,))
            if not rows:
                raise StoreError(f"the journal knows no agent {agent_id}", kind="missing")
            sealed = seal(*rows[0][:3], told)
            self._db.execute(sql.END_AGENT, (told, sealed, agent_id), f"agent {agent_id}")

    def not_ended(self) -> list[AgentRecord]:
        """Those that may be alive, in every run of the project."""
        return [record for record, _ in self._read(self._db.rows(sql.AGENTS_NOT_ENDED))]

    def of_run(self, run_id: str) -> list[tuple[AgentRecord, dict[str, Any] | None]]:
        """Every agent of a run, with what became of it; None: it has not ended."""
        return self._read(self._db.rows(sql.AGENTS_OF_RUN, (run_id,)))

    def _read(self, rows: list[tuple[Any, ...]]) -> list[tuple[AgentRecord, dict[str, Any] | None]]:
        for *columns, sealed in rows:
            if seal(*columns) != sealed:  # to end a process by a wrong pid would be worse than to fail
                raise self._db.damaged(f"agent {columns[0]}")
        return [(AgentRecord(**load(row[2])), load(row[3]) if row[3] else None) for row in rows]
