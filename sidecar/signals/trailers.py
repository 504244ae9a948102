"""What stands inside a signal file: free text, the reason, and a last paragraph of trailers.

Whoever writes `echo why > .stop` writes a reason. Sidecar's own writers add trailers, as git does to commits.
A paragraph counts as trailers only if every line of it is a known one with a sensible value: a reason that
happens to read `Run: the tests first` must not be taken for a signal to some other run and ignored.
"""

from __future__ import annotations

import os
import pwd
import time

from sidecar.model import ulid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 64 * 1024
_CUT = "\n[cut: the reason was longer than a signal file may be]"


class Trailers:
    """The known trailers of one signal; None where the writer gave none."""

    __slots__ = ("expires_at", "requested_at", "requested_by", "run_id", "signal_id", "timeout_s")

    def __init__(
        self,
        *,
        signal_id: str | None = None,
        requested_at: str | None = None,
        requested_by: str | None = None,
        run_id: str | None = None,
        expires_at: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.signal_id = signal_id
        self.requested_at = requested_at
        self.requested_by = requested_by
        self.run_id = run_id
        self.expires_at = expires_at
        self.timeout_s = timeout_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trailers) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in self.__slots__ if getattr(self, name) is not None)
        return f"Trailers({', '.join(given)})"


def signed(*, run_id: str | None = None, timeout_s: float | None = None) -> Trailers:
    """The trailers of a signal that is being written here and now, by this user on this machine."""
    return Trailers(
        signal_id=ulid.new(),
        requested_at=timestamp(time.time()),
        requested_by=_word(f"{_user()}@{os.uname().nodename}"),
        run_id=run_id,
        timeout_s=timeout_s,
    )


def compose(reason: str, trailers: Trailers) -> bytes:
    """The bytes of a signal file. A reason that would push the trailers out of reach of readers is cut."""
    lines = [f"{name}: {_written(getattr(trailers, slot))}" for name, slot, _ in _KNOWN if getattr(trailers, slot)]
    tail = ("\n".join(lines) + "\n").encode()
    body = _encode(reason.strip())
    room = MAX_BYTES - len(tail) - 2
    if len(body) > room:
        cut = _CUT.encode()
        body = body[: room - len(cut)].decode(errors="ignore").encode() + cut
    return body + b"\n\n" + tail if body else tail


def parse(content: bytes) -> tuple[str, Trailers]:
    """Reason and trailers of any bytes whatsoever; never raises."""
    text = content[:MAX_BYTES].decode(errors="replace").strip()
    if len(content) > MAX_BYTES:  # the last paragraph in reach is not the last one of the file
        return _readable(text), Trailers()
    reason, _, last = max((text.rpartition(blank) for blank in ("\n\n", "\r\n\r\n")), key=lambda parts: len(parts[0]))
    trailers = _parse_paragraph(last)
    return (_readable(text), Trailers()) if trailers is None else (reason.strip(), trailers)


def timestamp(seconds: float) -> str:
    """A moment as the trailers write it, in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def moment(text: str) -> float | None:
    """The seconds of a timestamp, or None if it is none."""
    from datetime import UTC, datetime  # noqa: PLC0415 - readers only: writers must start fast

    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's nameless user
        return str(os.getuid())


def _readable(text: str) -> str:
    """The text, or nothing where the file held something binary: noise is no reason."""
    is_text = "\0" not in text and any(sign.isprintable() and sign not in " \ufffd" for sign in text)
    return text if is_text else ""


def _parse_paragraph(paragraph: str) -> Trailers | None:
    found: dict[str, object] = {}
    for line in paragraph.split("\n"):
        name, separator, value = line.partition(":")
        known = _BY_NAME.get(name.lower())
        parsed = known[1](value.strip()) if known and separator else None
        if known is None or parsed is None or known[0] in found:
            return None
        found[known[0]] = parsed
    return Trailers(**found)  # type: ignore[arg-type]


def _word(text: str) -> str | None:
    """One line of visible text."""
    return text if text and len(text) <= 256 and text.isprintable() else None


def _id(text: str) -> str | None:
    return _word(text) if " " not in text else None


def _run_id(text: str) -> str | None:
    return text if ulid.is_valid(text) else None


def _moment_text(text: str) -> str | None:
    return text if moment(text) is not None else None


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


_KNOWN: tuple[tuple[str, str, Callable[[str], object]], ...] = (
    ("Signal-Id", "signal_id", _id),
    ("Requested-At", "requested_at", _moment_text),
    ("Requested-By", "requested_by", _word),
    ("Run", "run_id", _run_id),
    ("Expires", "expires_at", _moment_text),
    ("Timeout", "timeout_s", _seconds),
)
_BY_NAME = {name.lower(): (slot, check) for name, slot, check in _KNOWN}


def _written(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _encode(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")  # arguments that were not UTF-8 arrive this way
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
