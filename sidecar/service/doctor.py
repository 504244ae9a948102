"""Everything that `sidecar doctor` checks: the project, the machine under it, what was left there, and the programs."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Literal

import anyio

from sidecar import __version__, config, layout
from sidecar.agents import containment
from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.supervisor import Launch, Supervisor
from sidecar.catalog import agents
from sidecar.catalog.agents import CatalogAgent
from sidecar.config import Settings
from sidecar.errors import REPORTED, AgentFailed, ConfigError, SidecarError
from sidecar.model import ulid
from sidecar.signals import files, run_lock, targets
from sidecar.signals.files import Signal
from sidecar.signals.receipts import still_to_take
from sidecar.signals.watch import source_for
from sidecar.sockets import connect
from sidecar.store import schema
from sidecar.store.db import NAME, open_database
from sidecar.store.journal import Journal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One result of a check; `advice` is what to do about it."""

    topic: str
    state: State
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def fine(topic: str, text: str) -> DoctorFinding:
    """A check without problems."""
    return DoctorFinding(topic, "ok", text)


def note(topic: str, text: str, advice: str = "") -> DoctorFinding:
    """No problem, but worth knowing."""
    return DoctorFinding(topic, "note", text, advice)


def problem(topic: str, text: str, advice: str) -> DoctorFinding:
    """Something does not work, or not as it should."""
    return DoctorFinding(topic, "problem", text, advice)


# --- the project


_MEGABYTE = 1_000_000


async def findings(root: str, environment: Mapping[str, str]) -> list[DoctorFinding]:
    """All findings. Nothing is changed."""
    state = layout.state_directory(root)
    found = list(_project(root))
    try:
        config.refuse_foreign(root, environment)
    except ConfigError as error:
        return [*found, problem("project", str(error), "nothing else was checked")]
    settings = _settings(root, environment, found)
    for look in (
        _python(),
        _platform(sys.platform),
        _clock(state),
        _file_system(root),
        _file_events(settings),
        _remains(root, environment),
        _sockets(root),
        _database(root),
        _containment(settings),
    ):
        found += _until_error(look)
    try:
        found += await _agents_and_service(root, settings, environment)
    except REPORTED as error:
        found.append(problem("agents", f"none can be started: {error}", "see containment"))
    return found


def _until_error(look: Iterator[DoctorFinding]) -> Iterator[DoctorFinding]:
    """A check that cannot be made is a finding, too, and the others are made all the same."""
    try:
        yield from look
    except (*REPORTED, OSError) as error:
        yield problem("doctor", f"this check failed: {error}", "correct that first")


def _project(root: str) -> Iterator[DoctorFinding]:
    state = layout.state_directory(root)
    yield fine("project", root)
    if not os.path.isdir(state):
        yield note(
            "project", f"no {layout.STATE_DIRECTORY}/ yet", "`sidecar init` creates it, and so does the first run"
        )
    elif not os.access(state, os.W_OK | os.X_OK):
        yield problem("project", f"{state} may not be written", "runs cannot be stored there: check its owner and mode")


def _settings(root: str, environment: Mapping[str, str], found: list[DoctorFinding]) -> Settings:
    """The settings; the defaults if they cannot be read."""
    try:
        settings = config.load(root, environment)
    except ConfigError as error:
        found.append(problem("settings", str(error), "correct it; the checks below use the defaults"))
        return config.Settings.model_validate({})
    changed = [name for name, origin in config.origins(root, environment).items() if origin != "default"]
    found.append(fine("settings", f"set here: {', '.join(changed)}" if changed else "all defaults"))
    found += [note("settings", doubt) for doubt in settings.doubts()]
    return settings


def _database(root: str) -> Iterator[DoctorFinding]:
    path = os.path.join(layout.state_directory(root), NAME)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        yield fine("database", "none yet: no run has been started here")
        return
    try:
        with open_database(root) as database:
            database.verify()
            runs = len(Journal(database).runs())
    except REPORTED as error:
        yield problem("database", str(error), "runs cannot be started or resumed until that is corrected")
        return
    size = sum(os.path.getsize(path + suffix) for suffix in ("", "-wal") if os.path.exists(path + suffix))
    yield fine("database", f"intact, version {schema.VERSION}, {size / _MEGABYTE:.1f} MB, {runs} runs")
    if stat.S_IMODE(status.st_mode) & 0o077:
        text = f"{path} can be read by others; it has prompts and environments"
        yield problem("database", text, f"chmod 600 '{path}'")


# --- what processes that died or signals that nobody takes left behind


_HALF_WRITTEN = re.compile(r"\.(stop|abort)(\.taken|(\.receipt\.json)?\.[0-9a-f]{16}\.tmp)")
_UNDER_WAY_S = 60.0
_SHOWN = 5


def _remains(root: str, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Signals that no open run consumes, and files that a process left half-written."""
    found = list(_stale_signals(root, environment))
    yield from found[:_SHOWN]
    if len(found) > _SHOWN:
        yield problem("stale files", f"and {len(found) - _SHOWN} more signals that no open run consumes", "see above")
    halves = [path for directory in _directories(root, environment) for path in _halves(directory)]
    if halves:
        yield note("stale files", f"half-written by a process that died: {_named(halves)}", f"rm {_named(halves)}")
    if not found and not halves:
        yield fine("stale files", "no stale signals")


def _sockets(root: str) -> Iterator[DoctorFinding]:
    """The daemon, and sockets at which no process listens."""
    pid = _daemon(root)
    yield fine("daemon", f"process {pid}" if pid else "not running; detached runs get a process of their own")
    dead = [path for path in (layout.daemon_socket(root), layout.handover_socket(root)) if _is_dead(path)]
    if pid and not os.path.exists(layout.daemon_socket(root)):
        yield problem(
            "daemon", f"process {pid} has no socket", "restart it, if the socket does not appear within a second"
        )
    for run_id in _entries(layout.runs_directory(root)):
        path = layout.run_socket(root, run_id)
        if os.path.lexists(path) and not run_lock.is_live(root, run_id):
            dead.append(path)
    if dead:
        yield note("sockets", f"no process listens at {_named(dead)}", f"rm {_named(dead)}")


def _stale_signals(root: str, environment: Mapping[str, str]) -> Iterator[DoctorFinding]:
    for directory in _directories(root, environment):
        for kind in files.FILE_NAMES:
            signal = files.read(os.path.realpath(directory), kind)
            if signal is not None and not still_to_take(root, signal):
                yield _stale(signal)


def _stale(signal: Signal) -> DoctorFinding:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(signal.arrived_at))
    effect = "no open run consumes it"
    if signal.kind == "stop":
        effect = "the next run that it governs stops before its first step"
    if signal.trailers.run_id is not None:
        effect = f"it is for run {signal.trailers.run_id}, which is not open"
    text = f"{signal.path}, since {since} ({' '.join(signal.reason.split())[:80]}): {effect}"
    return problem("stale files", text, f"rm '{signal.path}', unless you want that")


def _directories(root: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Every signal directory of the project."""
    yield layout.state_directory(root)
    workspaces = targets.workspaces_directory(root, environment)
    yield from (os.path.join(workspaces, name) for name in _entries(workspaces) if layout.is_name(name))
    runs = layout.runs_directory(root)
    yield from (os.path.join(runs, name) for name in _entries(runs) if ulid.is_valid(name))


def _halves(directory: str) -> Iterator[str]:
    for name in _entries(directory):
        path = os.path.join(directory, name)
        try:
            if _HALF_WRITTEN.fullmatch(name) and time.time() - os.lstat(path).st_mtime > _UNDER_WAY_S:
                yield path
        except OSError:  # gone meanwhile
            continue


def _daemon(root: str) -> int | None:
    """The process that holds the daemon's lock."""
    try:
        file = os.open(layout.daemon_lock(root), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        content = os.pread(file, 32, 0).split(b"\n")[0]
        return int(content) if content.isdigit() else None
    except OSError:
        return None
    finally:
        os.close(file)
    return None


def _is_dead(path: str) -> bool:
    try:
        connect(path).close()
    except ConnectionRefusedError:
        return True
    except OSError:  # it is not there, or not ours
        return False
    return False


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _named(paths: list[str]) -> str:
    shown = " ".join(f"'{path}'" for path in paths[:_SHOWN])
    return shown + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


# --- the machine


_LIBRARIES = ("anyio", "mcp", "psutil", "pydantic", "pyyaml", "quickjs-ng", "watchdog")
_MOUNTS = "/proc/self/mountinfo"
_INOTIFY = "/proc/sys/fs/inotify"
_FEW_WATCHES = 8192
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "9p", "lustre")
_WITHOUT_EVENTS = ("fuse", "virtiofs", "vboxsf", "prl_fs")
_FOREVER_AGO = 1_767_225_600  # 2026-01-01: an earlier clock has not been set
_MOST_APART_S = 2.0


def _python() -> Iterator[DoctorFinding]:
    """The interpreter and what is installed in it."""
    yield fine("python", f"{sys.version.split()[0]}, {sys.executable}")
    versions: list[str] = []
    for name in _LIBRARIES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            advice = "install sidecar again, with its dependencies"
            yield problem("versions", f"{name} is not installed beside sidecar", advice)
    yield fine("versions", f"sidecar {__version__}; {', '.join(versions)}")


def _platform(name: str) -> Iterator[DoctorFinding]:
    """What is not tested here: the tests run on Linux."""
    if name == "linux":
        return
    shown = {"darwin": "macOS"}.get(name, name)
    text = (
        f"{shown}: sidecar is tested on Linux only. Not tested here: services of launchd, finding and ending processes "
        "without cgroups, recognising processes that a crash left behind, file events"
    )
    advice = "after the first abort, compare `survivors` of its receipt with what `ps` shows, and report differences"
    yield note("platform", text, advice)


def _clock(state_directory: str) -> Iterator[DoctorFinding]:
    """Signals expire by the clock, and the file system dates them."""
    now = time.time()
    if now < _FOREVER_AGO:
        yield problem("clock", f"it says {time.strftime('%Y-%m-%d', time.gmtime(now))}", "set the clock (NTP)")
        return
    try:
        with tempfile.TemporaryFile(dir=state_directory) as file:
            file.write(b"now")
            file.flush()
            apart_s = os.fstat(file.fileno()).st_mtime - time.time()
    except OSError:  # no such directory yet, or not ours to write
        yield fine("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}")
        return
    if abs(apart_s) > _MOST_APART_S:
        where = "ahead of" if apart_s > 0 else "behind"
        text = f"the file system's clock is {abs(apart_s):.0f} s {where} this machine's"
        yield problem("clock", text, "set both clocks (NTP); until then signals may expire too early or too late")
    else:
        yield fine("clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}, and the file system agrees")


def _file_system(root: str) -> Iterator[DoctorFinding]:
    """The project's file system: some have no events, or no reliable locks."""
    found = _mount(os.path.realpath(root))
    if found is None:
        return
    place, kind = found
    if kind.partition(".")[0] in _REMOTE:
        text = f"{kind} at {place}: a network file system"
        advice = "keep the project on a local disk: locks and file events are not reliable here"
        yield problem("file system", text, advice)
    elif kind.partition(".")[0] in _WITHOUT_EVENTS:
        yield note("file system", f"{kind} at {place}: it may have no file events; signals are noticed within a second")
    else:
        yield fine("file system", f"{kind} at {place}")


def _file_events(settings: Settings) -> Iterator[DoctorFinding]:
    """How signal files are noticed."""
    troubles: list[str] = []
    source = source_for(settings.watcher, troubles.append)
    yield fine("signals", f"noticed by {type(source).__name__.lower()}, and by a look every second")
    source.close()
    advice = "raise fs.inotify.max_user_instances with sysctl, or set `watcher: polling`"
    for trouble in troubles:
        yield problem("signals", trouble, advice)
    watches, instances = _limit("max_user_watches"), _limit("max_user_instances")
    if watches is None:
        return
    text = f"inotify: at most {watches:,} watches and {instances or 0:,} instances per user"
    if watches < _FEW_WATCHES:
        advice = (
            "sysctl fs.inotify.max_user_watches=524288; directories that cannot be watched are looked at every second"
        )
        yield note("signals", text, advice)
    else:
        yield fine("signals", text)


def _limit(name: str) -> int | None:
    try:
        with open(f"{_INOTIFY}/{name}") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _mount(path: str) -> tuple[str, str] | None:
    """The mount that a path is on, and its type; None where the system does not say."""
    best: tuple[str, str] | None = None
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(" ")
                place = fields[4].encode().decode("unicode_escape")
                # Of two at one place, the later one lies on top.
                if f"{path}/".startswith(f"{place.rstrip('/')}/") and (best is None or len(place) >= len(best[0])):
                    best = place, fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        return best
    return best


# --- the programs that a project needs


_ANSWER_S = 10.0
_GRACE_S = 0.5
_SYSTEMD = "/run/systemd/system"  # there while systemd is what runs the machine
_UNITS = "sidecar*"


def _containment(settings: Settings) -> Iterator[DoctorFinding]:
    """How the processes of an agent are found and ended."""
    try:
        report = containment.report(settings.containment)
    except SidecarError as error:
        yield problem("containment", str(error), "set `containment: auto`")
        return
    yield fine("containment", f"{report.name}" + (" (by setting)" if report.forced else ""))
    for name, why in report.why_not_better:
        yield note("containment", f"not {name}: {why}")
    yield fine("containment", f"cannot catch: {report.cannot_catch}")


async def _agents_and_service(root: str, settings: Settings, environment: Mapping[str, str]) -> list[DoctorFinding]:
    """Both at once: each asks a program, and some take their time to answer."""
    known, unusable = agents.listing(root)
    found: list[list[DoctorFinding]] = [[] for _ in range(len(known) + 1)]

    async def look_at(place: int) -> None:
        if place < len(known):
            found[place] = [await _agent(versions, known[place], settings.default_agent)]
        else:
            found[place] = await _service(versions)

    async with Supervisor(root, containment=settings.containment) as supervisor, anyio.create_task_group() as tasks:
        versions = _Versions(supervisor, root, environment)
        for place in range(len(found)):
            tasks.start_soon(look_at, place)
    doubtful = [note("agents", doubt) for agent in known for doubt in agents.doubts(agent)]
    broken = [problem("agents", text, "correct the file, or remove it") for text in unusable]
    if settings.default_agent not in [agent.name for agent in known]:
        text = f"default_agent is {settings.default_agent!r}, which does not exist"
        broken.append(problem("agents", text, "`sidecar agent list` shows all agents"))
    return [*(finding for findings in found[:-1] for finding in findings), *doubtful, *broken, *found[-1]]


class _Versions:
    """Runs programs that print a line or two."""

    def __init__(self, supervisor: Supervisor, root: str, environment: Mapping[str, str]) -> None:
        self.root = root
        self.environment = environment
        self._supervisor = supervisor

    async def output(self, *argv: str) -> tuple[int | None, list[str]]:
        """The exit code, None if it cannot be run or does not end; and its lines."""
        launch = Launch(argv=argv, cwd=self.root, starter_env=self.environment, kill_after_s=_GRACE_S)
        with anyio.move_on_after(_ANSWER_S):
            try:
                ended = await self._supervisor.run(launch)
            except AgentFailed as error:
                return None, [str(error).partition(": ")[2]]
            return ended.exit_code, [line.strip() for line in ended.tail.splitlines() if line.strip()]
        return None, [f"no answer within {_ANSWER_S:g} s"]


async def _agent(versions: _Versions, agent: CatalogAgent, default: str) -> DoctorFinding:
    definition = agent.definition
    if isinstance(definition.command, str):
        return fine("agents", f"{agent.name}: the caller gives the command")
    try:
        assignment = definition.assign(agent.name, {one.name: "" for one in definition.declared})
        call = ADAPTERS[definition.adapter].invocation(assignment, cwd=versions.root, environment=versions.environment)
    except AgentFailed as error:
        text = f"{agent.name}: {str(error).partition(': ')[2]}"
        if agent.name == default:
            text = f"{text} (it is the default agent)"
            return problem("agents", text, "install it, or set `default_agent` to another one")
        return note("agents", text)
    program = call.argv[0]
    if definition.adapter == "command":  # what it would do with `--version` is unknown
        return fine("agents", f"{agent.name}: {program}")
    code, lines = await versions.output(program, "--version")
    version = lines[0][:80] if lines else ""
    if code != 0:
        advice = f"run `{program} --version`"
        return problem("agents", f"{agent.name}: {program} does not work: {version or f'exit code {code}'}", advice)
    return fine("agents", f"{agent.name}: {version}, {program}")


async def _service(versions: _Versions) -> list[DoctorFinding]:
    if not _has_systemd(versions.environment):
        return [fine("service", "systemd is not running here")]
    found: list[DoctorFinding] = []
    for words in (("--system",), ("--user",)):
        listing = ("list-units", "--all", "--plain", "--no-legend", "--no-pager", _UNITS)
        code, lines = await versions.output("systemctl", *words, *listing)
        for unit in [line.split() for line in lines if len(line.split()) >= 4] if code == 0 else []:
            name, state = unit[0], f"{unit[2]} ({unit[3]})"
            if "failed" in unit[2:4]:
                advice = f"journalctl {words[0]} -u {name}"
                found.append(problem("service", f"{name} {words[0]}: {state}", advice))
            else:
                found.append(fine("service", f"{name} {words[0]}: {state}"))
    return found or [fine("service", "sidecar is not installed as a service (`sidecar service install`)")]


def _has_systemd(environment: Mapping[str, str]) -> bool:
    return os.path.isdir(_SYSTEMD) and shutil.which("systemctl", path=environment.get("PATH")) is not None
