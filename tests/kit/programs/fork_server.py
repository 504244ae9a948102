"""Starts the installed command again and again, each time in a fork of this process, which imported everything once.

A request is a byte on the socket that is stdin. With it come five descriptors: a file with the request as JSON
({"argv": [WORD, ...], "environment": {NAME: VALUE}, "directory": DIRECTORY, "terminal": BOOLEAN}), the standard streams
of the command, and a socket, on which the command's process number is sent, and its wait status when it has ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import sys
import threading
from importlib.metadata import entry_points
from typing import Any

# What the command imports besides its own modules, and only when it needs it.
_LATER = ("anyio._backends._asyncio", "difflib", "sqlite3", "uvicorn.protocols.http.auto", "watchdog.observers")
# Standard error is written line by line, the others as they are.
STREAMS = (("stdin", "r", "strict"), ("stdout", "w", "strict"), ("stderr", "w", "backslashreplace"))


def import_all(package: str) -> None:
    """Every module of a package but its programs, some of which act when they are imported."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def command(request: dict[str, Any], streams: list[int]) -> None:
    """Becomes the command: does not return."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, max(streams) + 1)
    if request["terminal"]:  # its first terminal becomes the controlling one of a new session
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = request["argv"]
    for file, (name, mode, errors) in enumerate(STREAMS):
        opened = open(file, mode, 1 if file == 2 else -1, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)
    code = installed()
    # As the interpreter ends, but it does not take apart the modules: that costs more than most commands.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def installed() -> int:
    """The command's exit code."""
    (script,) = entry_points(group="console_scripts", name="sidecar")
    try:
        found = script.load()()
    except SystemExit as end:
        found = end.code
    if isinstance(found, str):
        sys.stderr.write(found + "\n")
        return 1
    return int(found or 0)


def serve(descriptors: list[int]) -> None:
    """One request, in a fork that is the parent of the command and reports on it."""
    file, *streams, answers = descriptors
    with open(file, encoding="utf-8") as opened:
        request = json.load(opened)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        command(request, streams)
    for stream in (0, *streams):
        os.close(stream)
    with socket.socket(fileno=answers) as reports:
        reports.sendall(struct.pack("i", pid))
        reports.sendall(struct.pack("i", os.waitpid(pid, 0)[1]))
    os._exit(0)


def main() -> None:
    """Serve until the other end of the socket is closed."""
    import_all("sidecar")
    for name in _LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=0) as requests:
        while True:
            data, descriptors, _, _ = socket.recv_fds(requests, 1, 5)
            if not data:
                return
            if os.fork() == 0:
                requests.detach()
                serve(descriptors)
            for each in descriptors:
                os.close(each)


if __name__ == "__main__":
    main()
