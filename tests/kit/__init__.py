"""What tests drive and read the product with, from outside: the command line, files, sockets and the journal.

Nothing here imports `sidecar`, so that a test built on it stays as it is when modules move.
"""

from tests.kit import journal
from tests.kit.forking import SIDECAR, Forked, call
from tests.kit.ids import is_id, new_id
from tests.kit.journal import Event, RunRow
from tests.kit.project import Daemon, Project, tagged
from tests.kit.signals import HeldRun, SignalFile, present, read_signal
from tests.kit.terminal import JobShell, Terminal
from tests.kit.waiting import DEADLINE_S, alive, eventually, until

__all__ = [
    "DEADLINE_S",
    "SIDECAR",
    "Daemon",
    "Event",
    "Forked",
    "HeldRun",
    "JobShell",
    "Project",
    "RunRow",
    "SignalFile",
    "Terminal",
    "alive",
    "call",
    "eventually",
    "is_id",
    "journal",
    "new_id",
    "present",
    "read_signal",
    "tagged",
    "until",
]
