"""Logging of long-lived processes: lines on a terminal, fields for journald, JSON lines elsewhere; secrets masked."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

from sidecar.agents.output import Secrets
from sidecar.model import events as kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sidecar.model.events import RunEvent

logger = logging.getLogger("sidecar.runs")
_JOURNAL = "/run/systemd/journal/socket"
_LONGEST = 32 * 1024  # a datagram has a limit, and nobody reads more of one message
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG_PRIORITY = 7
_REPEATED_S = 60.0
_MOST_REPEATED = 256


def set_up(
    stream: TextIO, level: str, environment: Mapping[str, str], secrets: Iterable[str] = (), *, journal: str = _JOURNAL
) -> None:
    """Send the log to a stream in the form that fits it, without secrets."""
    handler: logging.Handler
    if _is_journal(stream, environment):
        handler = _Journal(stream, journal)
    else:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Plain() if stream.isatty() else _JsonLines())
    masked = Secrets(secrets)
    handler.addFilter(lambda record: _mask(record, masked))
    handler.addFilter(_Repeats(handler))
    root = logging.getLogger()
    for former in root.handlers:
        if isinstance(former, _Journal):  # set up before, by us: it has a socket
            former.close()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # what libraries say of themselves
    logging.getLogger("sidecar").setLevel(level.upper())


def following(project: str) -> Callable[[RunEvent], None]:
    """A listener that logs the few events of runs that an operator needs.

    It logs no text of people or agents: that is in the log of the run, masked with the run's own secrets.
    """
    names: dict[str, str] = {}

    def on_event(event: RunEvent) -> None:
        told = _log_entry(event, names)
        if told is not None:
            fields = {"project": project, "run_id": event.run_id, "event": event.kind}
            logger.log(
                told[0],
                "run %s (%s): %s",
                event.run_id,
                names.get(event.run_id, "?"),
                told[1],
                extra={"fields": fields},
            )
            if event.kind == kinds.RUN_ENDED:
                names.pop(event.run_id, None)

    return on_event


def _log_entry(event: RunEvent, names: dict[str, str]) -> tuple[int, str] | None:
    data = event.data
    if event.kind in (kinds.RUN_STARTED, kinds.RUN_RESUMED):
        names[event.run_id] = str(data.get("workflow"))
        return logging.INFO, event.kind.removeprefix("run_")
    if event.kind == kinds.RUN_ENDED:
        limit = f", limit reached: {data['limit']}" if data.get("limit") else ""
        return logging.WARNING if data.get("status") == "failed" else logging.INFO, f"{data.get('status')}{limit}"
    if event.kind == kinds.SIGNAL:
        return logging.INFO, f"{data.get('signal')} {'taken back' if data.get('cancelled') else 'requested'}"
    if event.kind == kinds.AGENT_ENDED and data.get("survivors"):
        return logging.ERROR, f"{data['survivors']} processes survived the end of their agent, pid {data.get('pid')}"
    return None


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    found = getattr(record, "fields", None)
    return found if isinstance(found, dict) else {}


def _is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether what is written there goes to journald: it says by which file, since children inherit the variable."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _mask(record: logging.LogRecord, secrets: Secrets) -> bool:
    if secrets:
        record.msg, record.args = secrets.masked_text(record.getMessage()), None
        if record.exc_info:
            record.exc_text = secrets.masked_text(logging.Formatter().formatException(record.exc_info))
    return True


class _Repeats(logging.Filter):
    """A warning or an error that comes again and again is told once, and once a minute how often it came since: what
    anybody can provoke must not fill the disk."""

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._repeated: OrderedDict[tuple[Any, ...], tuple[logging.LogRecord, int]] = OrderedDict()
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            due = self._due(record.created)
            is_new = record.levelno < logging.WARNING or self._is_new(record)
        for one, count in due:
            self._handler.emit(_again(one, count))
        return is_new

    def _is_new(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        key = (record.name, record.levelno, record.getMessage(), kind)
        known = self._repeated.get(key)
        self._repeated[key] = (known[0], known[1] + 1) if known else (record, 0)
        return known is None

    def _due(self, now: float) -> list[tuple[logging.LogRecord, int]]:
        """What was told a while ago; the oldest first, and so its place in here."""
        due = []
        while self._repeated:
            key, (record, count) = next(iter(self._repeated.items()))
            if now - record.created < _REPEATED_S and len(self._repeated) <= _MOST_REPEATED:
                break
            del self._repeated[key]
            if count:
                due.append((record, count))
        return due


def _again(record: logging.LogRecord, count: int) -> logging.LogRecord:
    told = logging.makeLogRecord(record.__dict__)
    told.created = time.time()
    told.msg, told.args = f"{record.getMessage()} ({count} more times in the last {_REPEATED_S:g} s)", None
    told.exc_info = told.exc_text = None
    return told


class _Plain(logging.Formatter):
    """For a person."""

    def __init__(self) -> None:
        super().__init__("sidecar: %(message)s")


class _JsonLines(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told = {"time": at, "level": record.levelname.lower(), "logger": record.name, **_fields(record)}
        if trace := _trace(record):
            told["exception"] = trace
        return json.dumps({**told, "message": record.getMessage()}, ensure_ascii=False, default=str)


class _Journal(logging.Handler):
    """To journald itself: through standard error every line would be an entry, and fields would be text."""

    def __init__(self, stream: TextIO, path: str) -> None:
        super().__init__()
        self._stream = stream
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # a journal that is stuck must not stick us

    def emit(self, record: logging.LogRecord) -> None:
        trace = _trace(record)
        message = record.getMessage() + (f"\n{trace}" if trace else "")
        fields = {
            "MESSAGE": message[:_LONGEST],
            "PRIORITY": next((number for level, number in _PRIORITIES if record.levelno >= level), _DEBUG_PRIORITY),
            "SYSLOG_IDENTIFIER": "sidecar",
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            **{f"SIDECAR_{name.upper()}": value for name, value in _fields(record).items()},
        }
        try:
            self._socket.sendto(b"".join(_field(name, str(value)) for name, value in fields.items()), self._path)
        except OSError:  # it is being restarted, or full: standard error leads there, too
            print(f"sidecar: {message}", file=self._stream, flush=True)

    def close(self) -> None:
        self._socket.close()
        super().close()


def _field(name: str, text: str) -> bytes:
    """As journald's protocol has it: a text with line breaks comes behind its length."""
    value = text.encode("utf-8", "replace")
    if b"\n" not in value:
        return b"%s=%s\n" % (name.encode(), value)
    return b"%s\n%s%s\n" % (name.encode(), len(value).to_bytes(8, "little"), value)


def _trace(record: logging.LogRecord) -> str | None:
    if record.exc_text or not record.exc_info:
        return record.exc_text
    return logging.Formatter().formatException(record.exc_info)
