"""Disks that are full or read-only and pages that are damaged: one clear line, and never a wrong state."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.errors import StoreError
from sidecar.store.db import Database, open_database
from sidecar.store.journal import Agents, Checkpoints, Handouts, Journal, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

SOMEBODY = 65534  # nobody, on every Linux
PRELUDE = """
import os, sys
from sidecar.errors import StoreError
from sidecar.store.db import Database, open_database
from sidecar.store.journal import Journal
from sidecar.store.journal import Steps

root = sys.argv[1]
def refused(action):
    try:
        action()
    except StoreError as error:
        assert "\\n" not in str(error) and root in str(error), error
        return error.kind
"""
# As root, everything is allowed: the child becomes somebody else.
AS_SOMEBODY = f"""
if os.getuid() == 0:
    os.setgroups([])
    os.setgid({SOMEBODY})
    os.setuid({SOMEBODY})
"""


@pytest.fixture
def root() -> Iterator[str]:
    """A directory that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="sidecar-test-") as name:
        os.chmod(name, 0o755)
        yield name
        for path, _, _ in os.walk(name):
            os.chmod(path, 0o755)


def said(code: str, root: str) -> str:
    command = [sys.executable, "-c", PRELUDE + code, root]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


FULL = """
mount -t tmpfs -o size=1m,nr_inodes=100 none "$1"
exec "$2" -c "$3" "$1"
"""


def test_a_disk_that_becomes_full_keeps_what_was_committed_and_goes_on_when_there_is_room(root: str) -> None:
    probe = ["unshare", "-rm", "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("no user and mount namespaces on this machine")
    code = """
with open(f"{root}/ballast", "wb") as file:
    file.write(bytes(300_000))
database = open_database(root)
steps = Steps(database)
Journal(database).create("R", "x", definition="", inputs={})
done = []
def complete(key, result):
    with database.transaction():
        steps.complete("R", key, steps.begin("R", key), result)
def fill():
    for number in range(len(done), 1_000):
        complete(f"step.{number}", "x" * 5_000)
        done.append(f"step.{number}")
print(refused(fill))
print([step.key for step in steps.steps("R") if step.status == "completed"] == done)
print(refused(fill), len(done) > 20)
os.unlink(f"{root}/ballast")
complete("after", 1)
database.verify()
database.close()
with open_database(root) as database:
    print([step.key for step in Steps(database).steps("R") if step.status == "completed"] == [*done, "after"])
try:
    with open(f"{root}/ballast", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
except OSError:
    pass
print(refused(lambda: open_database(root)))
"""
    command = ["unshare", "-rm", "sh", "-eu", "-c", FULL, "sh", root, sys.executable, PRELUDE + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("full\nTrue\nfull True\nTrue\nfull\n", "")


def test_a_project_that_may_not_be_written(root: str) -> None:
    os.chmod(root, 0o555)
    assert said(AS_SOMEBODY + "print(refused(lambda: open_database(root)))", root) == "forbidden\n"
    assert os.listdir(root) == []


def test_a_directory_that_becomes_read_only(root: str) -> None:
    with open_database(root) as database:
        Journal(database).create("R", "x", definition="", inputs={})
    os.chmod(f"{root}/.swissarmyhammer/sidecar.db", 0o444)
    os.chmod(f"{root}/.swissarmyhammer", 0o555)
    assert said(AS_SOMEBODY + "print(refused(lambda: open_database(root)))", root) == "forbidden\n"


def test_a_database_that_may_not_be_read(root: str) -> None:
    open_database(root).close()
    os.chmod(f"{root}/.swissarmyhammer/sidecar.db", 0)
    assert said(AS_SOMEBODY + "print(refused(lambda: open_database(root)))", root) == "forbidden\n"


def everything(path: str) -> Any:
    """All that a resume would rely on."""
    with Database(path) as database:
        database.verify()
        journal = Journal(database)
        runs = [
            (
                run,
                journal.definition(run.run_id),
                journal.events(run.run_id),
                journal.signals(run.run_id),
                Steps(database).steps(run.run_id),
                Handouts(database).all_held(run.run_id),
                Checkpoints(database).last(run.run_id),
            )
            for run in journal.runs()
        ]
        return runs, Agents(database).not_ended()


def read_or_refused(path: str) -> Any:
    try:
        return everything(path)
    except StoreError as error:
        return error


@pytest.fixture
def sample(root: str) -> Path:
    """A closed database with something in every table."""
    with open_database(root) as database, database.transaction():
        journal = Journal(database)
        for run_id in ("A", "B"):
            journal.create(run_id, "x", definition=f"name: {run_id}\n" * 20, inputs={"a": 1})
            journal.begin(run_id)
            for number in range(60):
                steps = Steps(database)
                steps.complete(
                    run_id, f"step.{number}", steps.begin(run_id, f"step.{number}"), {"n": number, "t": "x" * 99}
                )
                writes = [[[], [["raw", "n"], number, "set"]]]
                journal.append_all(run_id, 1, number + 1, [("step_completed", {"number": number}, writes)])
            journal.take_signal(run_id, "S", "stop")
            Handouts(database).hand_out(run_id, "", "next", {"id": "next"})
            Checkpoints(database).save(run_id, {"cursor": 1, "large": [f"{run_id} {n}" for n in range(4_000)]})
    return Path(root) / ".swissarmyhammer" / "sidecar.db"


def damaged(content: bytes, page: int, how: str, chance: random.Random) -> bytes:
    begin, size = page * 4096, 4096
    changed = bytearray(content)
    if how == "garbage":
        changed[begin : begin + size] = chance.randbytes(size)
    elif how == "zeros":
        changed[begin : begin + size] = bytes(size)
    elif how == "cut":
        return content[:begin]
    else:
        place = begin + chance.randrange(size)
        changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("how", ["garbage", "zeros", "cut", "a bit", "another bit"])
def test_a_damaged_page_is_noticed_or_harmless_but_never_changes_what_is_read(sample: Path, how: str) -> None:
    right, content, chance = everything(str(sample)), sample.read_bytes(), random.Random(how)
    noticed = 0
    for page in range(len(content) // 4096):
        for suffix in ("-wal", "-shm"):
            Path(f"{sample}{suffix}").unlink(missing_ok=True)
        sample.write_bytes(damaged(content, page, how, chance))
        found = read_or_refused(str(sample))
        if isinstance(found, StoreError):
            noticed += 1
            assert "\n" not in str(found)
            assert str(sample) in str(found)
        elif how == "cut" and page == 0:  # an empty file is a new database
            assert found == ([], [])
        else:
            assert found == right, f"page {page}"
    assert noticed > 5
