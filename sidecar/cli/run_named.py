"""A run as people name it: by its id, or by the beginning of it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.errors import InputError, NotFound
from sidecar.store.db import NAME, open_database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sidecar.store.db import Database
    from sidecar.store.journal import StoredRun

_SHORTEST = 4
_SHOWN = 5


@contextmanager
def journal_of(root: str) -> Iterator[Database | None]:
    """The project's database, to read; None where there is none: to look must not make one."""
    if not os.path.exists(os.path.join(layout.state_directory(root), NAME)):
        yield None
        return
    if layout.foreign(root, os.environ) is not None:
        from sidecar import config  # noqa: PLC0415 - to look costs no parser

        config.refuse_foreign(root, os.environ)
    with open_database(root) as database:
        yield database


@contextmanager
def journal_with(root: str, text: str) -> Iterator[tuple[Database, StoredRun]]:
    """The database, and the run that a text names. NotFound, or InputError where it could be several."""
    with journal_of(root) as database:
        if database is None:
            raise NotFound(f"no such run: {text}; no run has been started in {root}")
        yield database, find(Journal(database), text)


def find(journal: Journal, text: str) -> StoredRun:
    """The run whose id begins so."""
    wanted = text.upper()
    runs = journal.runs()
    found = [run for run in runs if run.run_id == wanted] or [run for run in runs if run.run_id.startswith(wanted)]
    if len(wanted) < _SHORTEST:
        raise InputError(f"{text!r} is too short for a run: its id, or at least its first {_SHORTEST} characters")
    if not found:
        raise NotFound(f"no such run: {text}; `sidecar status` lists them")
    if len(found) > 1:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        named = ", ".join(run.run_id for run in found[:_SHOWN])
        raise InputError(f"{text!r} is the beginning of {len(found)} runs: {named}{more}")
    return found[0]
