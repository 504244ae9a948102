"""Where a run can go on from: cursor and state at a boundary, and only what changed since the last one is stored anew.

A large value is taken apart into pieces, each kept once under the hash of its content: the entries of an object, or
stretches of a long object or list. So a counter that changes beside a megabyte that does not costs one small row, and
a list that grows costs its last stretch. The hash also tells when a piece was damaged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.store.db import dump, load, plain, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sidecar.store.db import Database


_SMALL = 512  # characters; a piece of its own would cost more than it saves
_LARGE = 16_384  # characters; what is longer is taken apart
_STRETCH = 64  # items of a list, entries of an object
# The first item of a stored value says what the second is: the value itself, the hash of a piece, an object's
# entries, a list's stretches, an object's stretches; in the last three each part is a stored value again.
_PLAIN, _PIECE, _ENTRIES, _LISTS, _OBJECTS = range(5)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last boundary that a run has passed."""

    run_id: str
    number: int
    at: float
    content: Any


class Checkpoints:
    """Each call is a transaction, or a part of the one that is open."""

    def __init__(self, database: Database, *, keep: int = 3) -> None:
        self._db = database
        self._keep = max(keep, 1)

    def save(self, run_id: str, content: object, *, durable: bool = True) -> int:
        """One more checkpoint; the oldest goes. Gives its number."""
        pieces: dict[bytes, str] = {}
        stored = _apart(content, pieces)
        with self._db.transaction(durable=durable):
            number: int = self._db.rows(_LAST_CHECKPOINT_NUMBER, (run_id,))[0][0] + 1
            columns = (run_id, number, self._db.clock(), stored)
            self._db.execute(_ADD_CHECKPOINT, (*columns, seal(*columns)), f"run {run_id}")
            for name, text in pieces.items():
                self._db.execute(_ADD_PIECE, (run_id, name, text))
                self._db.execute(_USE_PIECE, (run_id, name, number))
            self._drop(run_id, before=number - self._keep + 1)
        return number

    def last(self, run_id: str) -> Checkpoint | None:
        """The newest; None where the run has passed no boundary yet."""
        with self._db.snapshot():
            rows = self._db.rows(_LAST_CHECKPOINT, (run_id,))
            return self._read(rows[0]) if rows else None

    def get(self, run_id: str, number: int) -> Checkpoint | None:
        """One of those that are kept."""
        with self._db.snapshot():
            rows = self._db.rows(_CHECKPOINT, (run_id, number))
            return self._read(rows[0]) if rows else None

    def numbers(self, run_id: str) -> list[int]:
        """Which are kept."""
        return [number for (number,) in self._db.rows(_CHECKPOINT_NUMBERS, (run_id,))]

    def _drop(self, run_id: str, *, before: int) -> None:
        if not self._db.execute(_DROP_CHECKPOINTS, (run_id, before)):
            return
        # Every checkpoint notes all of its pieces, so what none of those kept has noted belongs to nobody.
        self._db.execute(_DROP_PIECES, (run_id, run_id, before))
        self._db.execute(_DROP_USES, (run_id, before))

    def _read(self, row: tuple[Any, ...]) -> Checkpoint:
        run_id, number, at, content, sealed = row
        if seal(run_id, number, at, content) != sealed:
            raise self._db.damaged(f"checkpoint {number} of run {run_id}")
        return Checkpoint(run_id, number, at, self._together(run_id, load(content)))

    def _together(self, run_id: str, stored: list[Any]) -> Any:
        form, content = stored
        if form == _PLAIN:
            return content
        if form == _ENTRIES:
            return {key: self._together(run_id, value) for key, value in content.items()}
        if form == _LISTS:
            return [item for stretch in content for item in self._together(run_id, stretch)]
        if form == _OBJECTS:
            return {key: item for stretch in content for key, item in self._together(run_id, stretch).items()}
        name = bytes.fromhex(content)
        rows = self._db.rows(_READ_PIECE, (run_id, name))
        if not rows or _name(rows[0][0]) != name:
            raise self._db.damaged(f"a piece of a checkpoint of run {run_id}")
        return self._together(run_id, load(rows[0][0]))


def _apart(value: Any, pieces: dict[bytes, str]) -> str:
    """The value in stored form, as text; its pieces are added to those given."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            value = plain(value)
        if len(value) > _STRETCH:
            return _as_piece(_in_stretches(_OBJECTS, list(value.items()), dict, pieces, _STRETCH), pieces)
    elif isinstance(value, list | tuple) and len(value) > _STRETCH:
        return _as_piece(_in_stretches(_LISTS, value, list, pieces, _STRETCH), pieces)
    text = dump(value)
    if len(text) > _LARGE and isinstance(value, dict):
        entries = [f"{dump(key)}:{_apart(item, pieces)}" for key, item in value.items()]
        return _as_piece(f"[{_ENTRIES},{{{','.join(entries)}}}]", pieces)
    if len(text) > _LARGE and isinstance(value, list | tuple) and len(value) > 1:
        return _as_piece(_in_stretches(_LISTS, value, list, pieces, 1), pieces)
    return _as_piece(f"[{_PLAIN},{text}]", pieces)


def _in_stretches(
    form: int, items: Sequence[Any], kind: Callable[[Any], Any], pieces: dict[bytes, str], length: int
) -> str:
    stretches = [kind(items[begin : begin + length]) for begin in range(0, len(items), length)]
    return f"[{form},[{','.join([_apart(stretch, pieces) for stretch in stretches])}]]"


def _as_piece(stored: str, pieces: dict[bytes, str]) -> str:
    if len(stored) <= _SMALL:
        return stored
    name = _name(stored)
    pieces[name] = stored
    return f'[{_PIECE},"{name.hex()}"]'


def _name(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


_LAST_CHECKPOINT = """SELECT run_id, number, at, content, seal FROM checkpoints WHERE run_id = ?
    ORDER BY number DESC LIMIT 1"""
_CHECKPOINT = "SELECT run_id, number, at, content, seal FROM checkpoints WHERE run_id = ? AND number = ?"
_CHECKPOINT_NUMBERS = "SELECT number FROM checkpoints WHERE run_id = ? ORDER BY number"
_LAST_CHECKPOINT_NUMBER = "SELECT COALESCE(MAX(number), 0) FROM checkpoints WHERE run_id = ?"
_ADD_CHECKPOINT = "INSERT INTO checkpoints (run_id, number, at, content, seal) VALUES (?, ?, ?, ?, ?)"
_DROP_CHECKPOINTS = "DELETE FROM checkpoints WHERE run_id = ? AND number < ?"
_USE_PIECE = """INSERT INTO uses (run_id, hash, last) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET last = excluded.last"""
_ADD_PIECE = "INSERT INTO pieces (run_id, hash, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_READ_PIECE = "SELECT content FROM pieces WHERE run_id = ? AND hash = ?"
_DROP_PIECES = "DELETE FROM pieces WHERE run_id = ? AND hash IN (SELECT hash FROM uses WHERE run_id = ? AND last < ?)"
_DROP_USES = "DELETE FROM uses WHERE run_id = ? AND last < ?"
