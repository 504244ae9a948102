"""The SQLite database of a project, shared by all its processes: transactions, sealed rows, errors that say what to do.

Calls block, for microseconds to a few milliseconds; where another process holds the lock, up to the busy timeout.
On an event loop, `when_free` waits for the lock, or a transaction is given the time for which it may wait.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import zlib
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sidecar import layout
from sidecar.errors import JournalLocked, StoreError
from sidecar.store import schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

Result = TypeVar("Result")
Row = TypeVar("Row")

NAME = "sidecar.db"
_LEAST_SQLITE = (3, 35, 0)
_WAL_KEPT = 16 * 1024 * 1024  # after a burst the log is cut back to this
_AGAIN_S = 0.01
_LOOK_S = 1.0  # how long reads go on without a look at the files
_SUFFIXES = ("", "-wal", "-shm")
_NOT_STORABLE = (UnicodeEncodeError, OverflowError)
_ERRORS = (sqlite3.Error, UnicodeError, OverflowError)  # of a statement
_KINDS = {
    sqlite3.SQLITE_BUSY: ("locked", "another process has kept it locked for {busy:g} s; see who, and try again"),
    sqlite3.SQLITE_LOCKED: ("locked", "it is locked; try again"),
    sqlite3.SQLITE_FULL: ("full", "no space left on the disk; make room and resume"),
    sqlite3.SQLITE_READONLY: ("forbidden", "it may not be written; check the directory's owner and permissions"),
    sqlite3.SQLITE_PERM: ("forbidden", "it may not be opened; check its owner and permissions"),
    sqlite3.SQLITE_CANTOPEN: ("forbidden", "it cannot be opened; check the directory's owner, permissions and space"),
    sqlite3.SQLITE_CORRUPT: ("damaged", "it is damaged; move it away (and its -wal), or restore a copy"),
    sqlite3.SQLITE_NOTADB: ("damaged", "it is not a database of sidecar's; move it away"),
    sqlite3.SQLITE_IOERR: ("io", "the disk failed ({error}); check it, and resume"),
    sqlite3.SQLITE_TOOBIG: ("value", "a value is too large for it"),
}

_encode = json.JSONEncoder(separators=(",", ":")).encode  # one for all: `json.dumps` would make one for each value


def dump(value: object) -> str:
    """JSON. In ASCII, since a string out of JavaScript can hold half a surrogate pair, which is no UTF-8."""
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the journal keeps JSON only: {error}", kind="value") from None


def plain(value: Any) -> Any:
    """The value as it will be read back, so that writing it once more gives the same text and the same seal."""
    return json.loads(dump(value))


def load(text: str) -> Any:
    """What `dump` wrote."""
    return json.loads(text)


def pack(value: object) -> bytes:
    """JSON, compressed: for what is large."""
    return zlib.compress(dump(value).encode(), 1)


def unpack(packed: bytes) -> Any:
    """What `pack` wrote."""
    return load(zlib.decompress(packed).decode())


class Table(Generic[Row]):
    """A table whose rows end in a seal, a checksum over the other columns by which a changed row is noticed: SQLite
    notices a page whose structure is broken, but would return a value with a changed digit as it is.

    The columns are the fields of `row`, a dataclass or a named tuple; those in `json` hold JSON. `shown` names a row
    in messages, by its columns.
    """

    def __init__(self, name: str, row: type[Row], shown: str, *, json: Collection[str] = ()) -> None:
        self._row = row
        self._columns: tuple[str, ...] = row.__match_args__  # type: ignore[attr-defined]
        self._shown = shown
        self._values: Callable[[Row], tuple[Any, ...]] = attrgetter(*self._columns)
        self._json = [index for index, column in enumerate(self._columns) if column in json]
        columns = ", ".join(self._columns)
        self._update = f"UPDATE {name} SET"
        self.insert = f"INSERT INTO {name} ({columns}, seal) VALUES ({'?, ' * len(self._columns)}?)"  # noqa: S608
        self.select = f"SELECT {columns}, seal FROM {name}"  # noqa: S608

    def encoded(self, row: Row) -> list[Any]:
        """The columns of a row, with its seal."""
        columns = list(self._values(row))
        for index in self._json:
            columns[index] = dump(columns[index])
        columns.append(_seal(columns))
        return columns

    def decoded(self, found: tuple[Any, ...]) -> Row | None:
        """The row with these columns; None where its seal is another."""
        *columns, seal = found
        if _seal(columns) != seal:
            return None
        for index in self._json:
            columns[index] = load(columns[index])
        return self._row(*columns)

    def update(self, row: Row, changed: Sequence[str]) -> tuple[str, list[Any]]:
        """The beginning of a statement that changes these columns to those of the row, and its values."""
        columns = dict(zip((*self._columns, "seal"), self.encoded(row), strict=True))
        names = [*changed, "seal"]
        return f"{self._update} {', '.join(f'{name} = ?' for name in names)}", [columns[name] for name in names]

    def shown(self, found: Sequence[Any]) -> str:
        """A row in words, by its columns."""
        return self._shown.format_map(dict(zip(self._columns, found, strict=False)))


def _seal(columns: list[Any]) -> int:
    """A checksum over columns, whose types count too."""
    return zlib.crc32(repr(columns).encode("utf-8", "surrogatepass"))


def open_database(root: str) -> Database:
    """The project's database, made where there is none yet."""
    return Database(os.path.join(layout.state_directory(root), NAME))


class Database:
    """A connection, for one thread. What it cannot do it refuses with `StoreError`, and then nothing was done."""

    def __init__(self, path: str, *, busy_timeout_s: float = 10.0, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock
        self._busy_s = busy_timeout_s
        self._waits_s = busy_timeout_s  # for the lock, as the connection is set now
        self._open = False  # a transaction
        self._broken = False  # a part of it failed, so that all of it must
        self._durable = True
        self._files: tuple[tuple[int, int], ...] = ()
        self._looked_at = -math.inf  # when the files were found to be ours
        self._make_file()
        try:
            self._connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
        except sqlite3.Error as error:
            raise self._explained(error) from None
        try:
            self._prepare()
            self._create_tables()
            self.rows("SELECT 1 FROM runs LIMIT 1")  # the log and its index are open from the first reading on
            self._files = self._identities()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it; a second time does nothing."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self, *, durable: bool = True, wait_s: float | None = None) -> Iterator[None]:
        """All of it or nothing. Durable: on the disk when it returns, with all that was committed before it.

        Otherwise it survives the death of this process, and is on the disk with the next durable one. Inside another
        one it is a part of that: committed with it, and lost with it. JournalLocked: another process has had the lock
        for `wait_s`, the busy timeout where none is given, and nothing was begun.
        """
        if self._open:
            if durable and not self._durable:  # SQLite cannot change its mind here, and less than asked is no answer
                self._broken = True
                raise StoreError(f"{self.path}: a durable part in a transaction that is not durable", kind="conflict")
            try:
                yield
            except BaseException:
                self._broken = True  # a caller that catches this must not commit the half that was done
                raise
            return
        self._begin(durable, self._busy_s if wait_s is None else wait_s)
        try:
            yield
            if self._broken or not self._connection.in_transaction:
                raise StoreError(
                    f"{self.path}: a part of the transaction failed: nothing of it is kept", kind="conflict"
                )
            self._run("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._open, self._broken = False, False
        if durable:
            self._refuse_replaced()  # committed into a file that cannot be found again

    def insert(self, table: Table[Row], *rows: Row) -> None:
        """New rows, inside a transaction."""
        encoded = [table.encoded(row) for row in rows]
        for columns in encoded:
            self.execute(table.insert, columns, partial(table.shown, columns))

    def select(self, table: Table[Row], where: str = "", values: Sequence[Any] = ()) -> list[Row]:
        """The rows that a WHERE clause finds, with what comes after it. A row that was changed is damage."""
        rows = []
        for found in self.rows(f"{table.select} {where}", values):
            row = table.decoded(found)
            if row is None:
                raise self.damaged(table.shown(found))
            rows.append(row)
        return rows

    def update(
        self, table: Table[Row], row: Row, changed: Sequence[str], where: str, values: Sequence[Any] = ()
    ) -> int:
        """Change these columns to those of the row where the clause holds, inside a transaction; how many rows were."""
        statement, columns = table.update(row, changed)
        return self.execute(f"{statement} {where}", (*columns, *values), lambda: table.shown(table.encoded(row)))

    def execute(self, sql: str, values: Sequence[Any] = (), shown: Callable[[], str] = str) -> int:
        """Change something, inside a transaction; the number of rows that were. `shown`: what, for an error."""
        # SQLite ends a transaction by itself when the disk is full. What came after would be committed alone.
        if not self._open or not self._connection.in_transaction:
            raise StoreError(f"{self.path}: nothing is written outside a transaction", kind="conflict")
        try:
            return self._connection.execute(sql, values).rowcount
        except _ERRORS as error:
            raise self._explained(error, shown()) from None

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Read columns as they are. Files that were replaced are noticed within a second, in a transaction at once."""
        if not self._open and time.monotonic() - self._looked_at >= _LOOK_S:
            self._refuse_strange()
        return self._run(sql, values)

    def verify(self) -> None:
        """Read every page. A reader of single rows would not notice a page that has lost some."""
        found = self.rows("PRAGMA integrity_check(1)")
        if found != [("ok",)]:
            raise self.damaged(str(found[0][0]).replace("\n", " "))

    def damaged(self, what: str) -> StoreError:
        """Something was read that was never written."""
        return StoreError(
            f"{self.path} is damaged ({what}); move it away (and its -wal), or restore a copy", kind="damaged"
        )

    def shrink(self, pages: int) -> None:
        """Give up to that many free pages back to the file system."""
        try:
            # As a script: `execute` stops after the first page, since the rows of this pragma have no columns.
            self._connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        except sqlite3.Error as error:
            raise self._explained(error) from None

    def _begin(self, durable: bool, wait_s: float) -> None:
        if durable != self._durable:
            self._run(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        # IMMEDIATE: one that reads first and writes later fails where another process wrote in between.
        self._wait_at_most(wait_s)
        try:
            self._run("BEGIN IMMEDIATE")
        except StoreError as error:
            if error.kind != "locked":
                raise
            raise JournalLocked(str(error)) from None
        finally:
            if wait_s < self._busy_s:
                self._wait_at_most(self._busy_s)
        self._open = True
        try:
            self._refuse_strange()  # under the lock: from here on no other process can change its version
        except BaseException:
            self._roll_back()
            self._open = False
            raise

    def _wait_at_most(self, wait_s: float) -> None:
        if wait_s != self._waits_s:
            self._run(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
            self._waits_s = wait_s

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:  # the disk is gone: what was not committed is not there, with or without this
            pass

    def _run(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except _ERRORS as error:
            raise self._explained(error) from None

    def _make_file(self) -> None:
        """Readable by its owner only: prompts and environments are in it."""
        directory = os.path.dirname(self.path)
        try:
            layout.make_directory(directory)
            # Never opened where it exists: closing it would drop the locks of every other connection of this process.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            entry = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(entry)
            finally:
                os.close(entry)
        except FileExistsError:
            return
        except OSError as error:
            kind = "full" if self._is_full() else "forbidden"
            raise StoreError(f"cannot make {self.path}: {error.strerror}", kind=kind) from None

    def _prepare(self) -> None:
        if sqlite3.sqlite_version_info < _LEAST_SQLITE:
            raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: sidecar needs 3.35", kind="forbidden")
        for pragma in (
            "foreign_keys = ON",
            "cell_size_check = ON",  # notices a damaged page before it is used
            "trusted_schema = OFF",
            f"journal_size_limit = {_WAL_KEPT}",
        ):
            self._run(f"PRAGMA {pragma}")
        if self.rows("PRAGMA page_count") == [(0,)]:  # later it has no effect, and would wait for the lock
            self._run("PRAGMA auto_vacuum = INCREMENTAL")
        mode = self._log_ahead()
        if mode != "wal":
            raise StoreError(f"{self.path}: no write-ahead log on this file system (got {mode})", kind="forbidden")
        self._run("PRAGMA synchronous = FULL")

    def _create_tables(self) -> None:
        if self._version() == schema.VERSION:
            return
        with self.transaction():
            if self._version() == 0:  # read again under the lock: another process may have created them meanwhile
                for statement in schema.STATEMENTS:
                    self.execute(statement)
                self.execute(f"PRAGMA user_version = {schema.VERSION}")

    def _version(self) -> int:
        return int(self._run("PRAGMA user_version")[0][0])

    def _log_ahead(self) -> str:
        """Switching to WAL fails at once, timeout or not, while another process that has just started does the same."""
        deadline = time.monotonic() + self._busy_s
        while True:
            try:
                return str(self.rows("PRAGMA journal_mode = WAL")[0][0])
            except StoreError as error:
                if error.kind != "locked" or time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)

    def _refuse_strange(self) -> None:
        """Whatever happened to the files since we opened them."""
        self._looked_at = -math.inf
        self._refuse_replaced()
        if (version := self._version()) != schema.VERSION:
            schema.refuse_other(self.path, version)
        self._looked_at = time.monotonic()

    def _refuse_replaced(self) -> None:
        """SQLite goes on writing into files that were removed, where it cannot be found."""
        if self._files and self._identities() != self._files:
            self._looked_at = -math.inf
            raise StoreError(
                f"{self.path} (or its -wal or -shm) was removed or replaced while in use; what was journalled since "
                "is lost: end this sidecar and start it again",
                kind="removed",
            )

    def _identities(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [os.stat(self.path + suffix) for suffix in _SUFFIXES]
        except OSError:
            return ((-1, -1),)
        return tuple((status.st_dev, status.st_ino) for status in found)

    def _is_full(self) -> bool:
        try:
            space = os.statvfs(os.path.dirname(self.path))
        except OSError:
            return False
        return space.f_bavail == 0 or (space.f_files > 0 and space.f_favail == 0)

    def _explained(self, error: Exception, about: str = "") -> StoreError:
        code = getattr(error, "sqlite_errorcode", None)
        about = f" ({about})" if about else ""
        if isinstance(error, _NOT_STORABLE):
            return StoreError(f"the journal cannot keep this: {error}{about}", kind="value")
        if code is None and isinstance(error, sqlite3.OperationalError | UnicodeDecodeError):
            # A text, or SQLite's message about a text, that is not UTF-8: not written by us.
            return self.damaged(str(error).replace("\n", " "))
        if code is None:  # the module's own: the connection is closed, or used from another thread
            return StoreError(f"{self.path}: {error}", kind="closed")
        if code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            return StoreError(f"the journal does not know it{about}", kind="missing")
        if code & 0xFF == sqlite3.SQLITE_CONSTRAINT:
            return StoreError(f"the journal refuses it: {error}{about}", kind="conflict")
        kind, text = _KINDS.get(code & 0xFF, ("io", "{error}"))
        if self._files and self._identities() != self._files:
            kind, text = "removed", "it was removed or replaced while in use; end this sidecar and start it again"
        elif kind in ("io", "forbidden") and self._is_full():
            kind, text = _KINDS[sqlite3.SQLITE_FULL]
        return StoreError(f"{self.path}: {text.format(busy=self._waits_s, error=error)}", kind=kind)


# Waiting for the lock on an event loop, which goes on meanwhile.
TRY_S = 0.02  # how long one try may hold up the loop: others of ours are done in a few milliseconds
AGAIN_S = 0.02  # between two tries
_AT_MOST_S = 10.0


async def free(database: Database) -> None:
    """Wait until the lock can be had, so that whatever writes next need not wait for it on the loop."""
    await when_free(database, lambda: None)


async def when_free(
    database: Database, act: Callable[[], Result], *, durable: bool = True, at_most_s: float = _AT_MOST_S
) -> Result:
    """Do something in one transaction as soon as the lock can be had. JournalLocked, and nothing was done, where
    another process keeps it for longer."""
    import anyio  # noqa: PLC0415 - a command that only reads need not import it

    deadline = time.monotonic() + at_most_s
    while True:
        try:
            with database.transaction(durable=durable, wait_s=TRY_S):
                return act()
        except JournalLocked:
            if time.monotonic() > deadline:
                raise JournalLocked(
                    f"{database.path}: another process has kept it locked for {at_most_s:g} s; see who, and try again"
                ) from None
        await anyio.sleep(AGAIN_S)
