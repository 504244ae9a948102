"""The marks that an agent's processes carry: a token in the environment, and a number in a limit nobody uses.

Standard library only: the sentinel reads them too.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "SIDECAR_MARKER"
# RLIMIT_LOCKS. Linux has not enforced it since 2.4.25, yet every fork inherits it and no exec resets it, so its soft
# value marks a process even where the environment was emptied (codex gives MCP servers three variables).
TAG_LIMIT = 10
_TAG_BITS = 62
_UUID_BYTES = 37  # as text, with the zero at its end


class Owner(NamedTuple):
    """Whose agent it is: one process, for ever, on one boot, in one pid namespace."""

    pid: int
    started: float
    world: str


def new_tag() -> int:
    """A number that no other agent on this machine has, within a chance of one in 2**61."""
    return secrets.randbits(_TAG_BITS) | 1 << _TAG_BITS - 1


def token(agent_id: str, owner: Owner) -> str:
    """The word that names an agent and its owner in the environment."""
    return f"{agent_id}/{owner.pid}/{owner.started}/{owner.world}"


def owner_in(text: str) -> Owner | None:
    """Whose token it is, or None where it is not one of ours."""
    parts = text.split("/")
    if len(parts) != 4:
        return None
    try:
        return Owner(int(parts[1]), float(parts[2]), parts[3])
    except ValueError:
        return None


def extended(environment: Mapping[str, str], text: str) -> str:
    """The variable's value with one more token: an agent inside an agent carries both."""
    return f"{environment.get(VARIABLE, '')} {text}".strip()


def tokens_in(environ: bytes) -> tuple[str, ...]:
    """The tokens in an environment block as the kernel shows it."""
    start = 0 if environ.startswith(_PREFIX) else environ.find(b"\0" + _PREFIX) + 1
    if start == 0 and not environ.startswith(_PREFIX):
        return ()
    value = environ[start + len(_PREFIX) :].partition(b"\0")[0]
    return tuple(value.decode("utf-8", "replace").split())


def variable_in(environ: bytes, name: str) -> str | None:
    """One variable in an environment block as the kernel shows it."""
    prefix = os.fsencode(name) + b"="
    for entry in environ.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None


def boot_id() -> str:
    """Which boot of which machine this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        import ctypes  # noqa: PLC0415 - never imported where /proc exists

        import psutil  # noqa: PLC0415

        # The time of the boot is a last resort: it moves whenever the clock is set.
        return boot_session(ctypes.CDLL(None)) or str(int(psutil.boot_time()))


def boot_session(library: Any) -> str | None:
    """What macOS calls this boot, from its C library; None where that does not know."""
    import ctypes  # noqa: PLC0415

    ask = getattr(library, "sysctlbyname", None)
    if ask is None:
        return None
    told = ctypes.create_string_buffer(_UUID_BYTES)
    size = ctypes.c_size_t(_UUID_BYTES)
    if ask(b"kern.bootsessionuuid", told, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return None
    return told.value.decode("ascii", "replace") or None


def world() -> str:
    """The boot and the pid namespace: outside of it a pid in a token means nothing."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = "0"
    return f"{boot_id()}:{namespace}"


_PREFIX = VARIABLE.encode() + b"="
