"""Signal files inside a sandbox that forbids the quick way to ask for a name, as older container runtimes do."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")

# A filter of four instructions: load the number of the system call; if it is that of faccessat2, which is the same on
# every architecture, answer EPERM; allow all others.
FORBID = """
import ctypes, os, struct, sys
filter = [(0x20, 0, 0, 0), (0x15, 0, 1, 439), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filter))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(filter), ctypes.addressof(code)))
libc = ctypes.CDLL(None)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    sys.exit(77)
assert not os.access("/", os.F_OK, follow_symlinks=False), "nothing is forbidden"
from sidecar.signals import files
print(*[name for name in sorted(os.listdir(sys.argv[1])) if files.present(sys.argv[1] + "/" + name)])
print(files.present(sys.argv[1] + "/nothing"))
"""


def test_signals_are_seen_where_the_system_call_that_asks_for_them_is_forbidden(tmp_path: Path) -> None:
    (tmp_path / ".stop").touch()
    (tmp_path / ".abort").symlink_to("nowhere")
    done = subprocess.run(
        [sys.executable, "-c", FORBID, tmp_path], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("this system grants no seccomp filters")
    assert (done.stdout, done.stderr) == (".abort .stop\nFalse\n", "")
