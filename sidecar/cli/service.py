"""`sidecar service`: have systemd or launchd keep the project's daemon running."""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from sidecar import layout
from sidecar.cli.options import parser
from sidecar.errors import ConfigError, SidecarError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sidecar.service.units import Command, ServiceUnit

OK, FAILED = 0, 2
_LINGER = "/var/lib/systemd/linger"


def main(arguments: list[str], project: str | None) -> int:
    """Do one of the four; the exit code."""
    made = parser("service")
    options = made.parse_args(arguments)
    if options.run_as is not None and (options.user or options.action != "install"):
        made.error("--run-as goes with `install --system`")
    root = layout.find_root(project, os.environ)
    service = _service(root, options)
    if options.action == "install":
        _warn_of_root(root, service, os.environ.get("SUDO_USER"))
        if options.print:
            return _print(service)
        if options.run_as is not None:
            _refuse_stranger(root, options.run_as)
        return _install(service, system=options.system)
    installed = os.path.lexists(service.path)
    if options.action == "uninstall":
        if not installed:
            return _not_installed(service, OK)
        return _print_uninstall(service) if options.print else _uninstall(service, system=options.system)
    if not installed:
        return _not_installed(service, FAILED)
    if options.action == "status":
        return _status(service)
    follow = (service.follow,) if options.follow else ()
    return _become((*service.log, str(options.lines), *follow, *service.log_file))


# --- what is meant


def _service(root: str, options: argparse.Namespace) -> ServiceUnit:
    """The service that was named, or the one that is there, or the one that this person would install."""
    if not options.user and not options.system:
        options.system = os.geteuid() == 0 or options.run_as is not None
        if options.action != "install" and not os.path.lexists(_definition(root, system=options.system).path):
            other = _definition(root, system=not options.system)
            if os.path.lexists(other.path):
                options.system = not options.system
                return other
    return _definition(root, system=options.system, run_as=options.run_as)


def _definition(root: str, *, system: bool, run_as: str | None = None) -> ServiceUnit:
    """The project's service. One of the system's runs as whoever was named, now or when it was installed, else as the
    project's owner."""
    if not system:
        return _made(root, _account(os.geteuid()), system=False)
    if run_as is not None:
        return _made(root, _named(run_as), system=True)
    owners = _made(root, _account(os.stat(root).st_uid), system=True)
    before = _installed_for(owners.path)
    if before is None or before.pw_uid != os.stat(_kept_in(root)).st_uid:
        return owners
    return _made(root, before, system=True)


def _installed_for(path: str) -> pwd.struct_passwd | None:
    from sidecar.service.units import user_of  # noqa: PLC0415 - `--help` needs none of this

    try:
        with open(path, encoding="utf-8") as file:
            return pwd.getpwnam(user_of(file.read()) or "")
    except (OSError, UnicodeDecodeError, KeyError):  # it is not there, or names nobody
        return None


def _kept_in(root: str) -> str:
    """Where runs are kept: who executes them has to be its owner, and would not run what another user put there."""
    state = layout.state_directory(root)
    return state if os.path.isdir(state) else root


def _made(root: str, person: pwd.struct_passwd, *, system: bool) -> ServiceUnit:
    from sidecar.service import units  # noqa: PLC0415

    home = person.pw_dir if system else os.path.expanduser("~")
    given = units.Installation(
        root=root,
        program=_program(),
        search_path=units.search_path(home, sys.platform) if system else _search_path(home),
        home=home,
        user=person.pw_name if system else None,
        uid=person.pw_uid,
    )
    if sys.platform == "darwin":
        from sidecar import config  # noqa: PLC0415

        # Only there does the file depend on the settings: systemd is asked for more time when it is needed.
        given = replace(given, kill_after_s=config.read(root, os.environ).kill_after_s)
        return units.launchd(_template(units.LAUNCHD_TEMPLATE), given)
    return units.systemd(_template(units.SYSTEM_TEMPLATE if system else units.USER_TEMPLATE), given)


def _account(uid: int) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise SidecarError(f"user {uid} has no account here; a service needs one") from None


def _named(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise SidecarError(f"{name!r} has no account here; a service needs one") from None


def _program() -> tuple[str, ...]:
    """What starts this very sidecar."""
    script = os.path.join(os.path.dirname(sys.executable), "sidecar")
    return (script,) if os.path.exists(script) else (sys.executable, "-P", "-m", "sidecar")


def _search_path(home: str) -> str:
    """The person's own, but for what means another directory in another place."""
    from sidecar.service.units import search_path  # noqa: PLC0415

    return ":".join(filter(os.path.isabs, os.environ.get("PATH", "").split(":"))) or search_path(home, sys.platform)


def _template(name: str) -> str:
    from sidecar.catalog.naming import builtin_directory  # noqa: PLC0415

    with open(os.path.join(builtin_directory("systemd"), name), encoding="utf-8") as file:
        return file.read()


# --- what is done


def _warn_of_root(root: str, service: ServiceUnit, person: str | None) -> None:
    """`person`: who asked for it through sudo."""
    if service.user != "root":
        return
    name = person if person not in (None, "", "root") else "NAME"
    where = shlex.quote(root)
    print(
        "agents of this service run as root, and so may do anything to the machine: the project belongs to root; "
        f"to have them run as {'somebody else' if name == 'NAME' else name}: chown -R {name}: {where} && "
        f"sidecar --project {where} service install --system --run-as {name}",
        file=sys.stderr,
    )


def _refuse_stranger(root: str, name: str) -> None:
    place = _kept_in(root)
    if os.stat(place).st_uid != _named(name).pw_uid:
        told = shlex.quote(place)
        raise SidecarError(f"{place} does not belong to {name}, who could not keep runs there: chown -R {name}: {told}")


def _print(service: ServiceUnit) -> int:
    print(service.text, end="")
    print(f"{service.path} would have this content; then:", file=sys.stderr)
    for command in service.start:
        print(f"  {shlex.join(command)}", file=sys.stderr)
    return OK


def _install(service: ServiceUnit, *, system: bool) -> int:
    from sidecar.service.file_change import FileChange, read  # noqa: PLC0415
    from sidecar.service.units import is_untouched  # noqa: PLC0415

    change = FileChange(service.path, read(service.path), service.text)
    changed = change.before != change.after
    _reach(service, system=system)
    for directory in service.directories:
        layout.make_directory(directory)
    for path in service.written_by_user:
        _give(path, _named(service.user or ""))
    backup = change.write()
    if backup is not None and is_untouched(change.before or ""):
        os.unlink(backup)  # nobody's work: we can write it again at any time
    elif backup is not None:
        print(f"it was changed by hand, or is not ours: what was there is in {backup}")
    print(f"{service.path}: {'stays as it is' if not changed else 'new' if change.before is None else 'renewed'}")
    running = _runs(service.is_running, quiet=True)
    if running and changed:
        print("the daemon is restarted: its runs are interrupted, and resumed by the new one")
    if not all(map(_runs, service.start if not running else service.renew if changed else service.keep)):
        print("sidecar: the service did not start; see `sidecar service logs`", file=sys.stderr)
        return FAILED
    print(f"{service.name} runs, and will at every start of {'the machine' if system else 'your session'}")
    if not system and sys.platform != "darwin" and not os.path.exists(f"{_LINGER}/{_account(os.geteuid()).pw_name}"):
        print("it ends when you log out, unless you say once: loginctl enable-linger")
    return OK


def _give(path: str, person: pwd.struct_passwd) -> None:
    """A file that has to be there already, and to be somebody's who may not make one there."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.fchown(file, person.pw_uid, person.pw_gid)
    finally:
        os.close(file)


def _print_uninstall(service: ServiceUnit) -> int:
    for command in (*service.end, ("rm", service.path), *service.forget):
        print(shlex.join(command))
    return OK


def _uninstall(service: ServiceUnit, *, system: bool) -> int:
    from sidecar.service.file_change import read  # noqa: PLC0415
    from sidecar.service.units import is_untouched  # noqa: PLC0415

    before = read(service.path) or ""
    _reach(service, system=system)
    if not all(map(_runs, service.end)) and _runs(service.is_running, quiet=True):
        print("sidecar: the service could not be stopped, and stays installed", file=sys.stderr)
        return FAILED
    if is_untouched(before):
        os.unlink(service.path)
        print(f"{service.path}: removed")
    else:
        aside = f"{service.path}.backup-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        os.rename(service.path, aside)
        print(f"{service.path} was edited by hand, or is not ours; moved to {aside}")
    for command in service.forget:
        _runs(command, quiet=True)
    for directory in service.tidy:
        try:
            os.rmdir(directory)
        except OSError:  # it has other files, or does not exist
            pass
    if service.drop_ins is not None and os.path.isdir(service.drop_ins):
        print(f"{service.drop_ins} was not removed: it is yours")
    return OK


def _status(service: ServiceUnit) -> int:
    from sidecar.service.file_change import FileChange, read  # noqa: PLC0415
    from sidecar.service.units import is_untouched  # noqa: PLC0415

    change = FileChange(service.path, read(service.path), service.text)
    if not is_untouched(change.before or ""):
        told = "edited by hand, or not ours"
    elif change.before != change.after:
        told = "outdated: `sidecar service install` updates it"
    else:
        told = "as installed"
    print(f"{service.path}: {told}", flush=True)
    return OK if _runs(service.status) else FAILED


def _not_installed(service: ServiceUnit, code: int) -> int:
    print(f"{service.name} is not installed; `sidecar service install` does that")
    return code


def _reach(service: ServiceUnit, *, system: bool) -> None:
    """Before anything is changed: whether the manager can be talked to, by us."""
    if system and os.geteuid() != 0:
        raise SidecarError("only root can change services of the system: use sudo, or --user")
    if _runs(service.reach, quiet=True):
        return
    if sys.platform != "darwin" and not os.path.isdir("/run/systemd/system"):
        raise SidecarError("systemd does not run here; let what does keep `sidecar daemon` running")
    if system:
        raise SidecarError(f"it cannot be talked to: `{' '.join(service.reach)}` fails")
    raise SidecarError(
        f"you have no service manager here: `{' '.join(service.reach)}` fails; {service.without_manager}"
    )


def _runs(command: Command, *, quiet: bool = False) -> bool:
    """Run one of their own tools, and wait for it: whether it succeeded. What it has to say, it says itself."""
    silence = [(os.POSIX_SPAWN_OPEN, target, os.devnull, os.O_WRONLY, 0) for target in (1, 2)] if quiet else []
    sys.stdout.flush()
    try:
        pid = os.posix_spawnp(command[0], command, _environment(), file_actions=silence)
    except OSError as error:
        raise ConfigError(f"cannot start {command[0]}: {error.strerror}") from None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _become(command: Command) -> int:
    try:
        os.execvpe(command[0], command, _environment())  # noqa: S606 - one of theirs, and no shell
    except OSError as error:
        raise ConfigError(f"cannot start {command[0]}: {error.strerror}") from None


def _environment() -> dict[str, str]:
    """Ours, with the way to one's own manager, which a shell without a login (cron) does not know."""
    runtime = f"/run/user/{os.geteuid()}"
    given: Iterable[tuple[str, str]] = [("XDG_RUNTIME_DIR", runtime)] if os.path.isdir(runtime) else []
    return {**dict(given), **os.environ}
