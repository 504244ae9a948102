"""Where everything lives: the project's root and the paths below it.

Standard library only, and little of it: `sidecar stop` starts through here.
"""

from __future__ import annotations

import os

from sidecar.errors import ConfigError, SidecarError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_DIRECTORY = ".swissarmyhammer"
_PLACES_OF_COMMANDS = (STATE_DIRECTORY, ".aromcp")
_WRITTEN_BY_ALL = 0o002
_DIRECTORY = 0o755
_NAME_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
# What a plain YAML scalar may consist of for its text to be its value without asking a YAML parser.
_PLAIN_CHARACTERS = _NAME_CHARACTERS | frozenset("./")
_YAML_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null"})
_YAML_MACHINERY = (*"\"'|>&*!\\{}[]%?\t\ufeff", "---", "...")
_OTHER_LINE_BREAKS = "\r\x85\u2028\u2029"  # to YAML they end a line, and a comment with it


def find_root(override: str | None, environment: Mapping[str, str]) -> str:
    """The project's root: `--project`, else SIDECAR_PROJECT, else found upwards from the working directory."""
    chosen = override if override is not None else environment.get("SIDECAR_PROJECT")
    if chosen:
        root = os.path.realpath(chosen)
        if not os.path.isdir(root):
            source = "--project" if override is not None else "SIDECAR_PROJECT"
            raise SidecarError(f"{source}: no such directory: {chosen}")
        return root
    if override is not None:
        raise SidecarError("--project needs a directory")
    try:
        return root_above(os.getcwd(), home=os.path.expanduser("~"))
    except FileNotFoundError:
        raise SidecarError("the working directory no longer exists; change to one that does") from None


def root_above(directory: str, home: str) -> str:
    """The nearest ancestor with `.swissarmyhammer/`, else the nearest with `.git`, else the directory itself.

    The home directory's own `.swissarmyhammer/` holds a person's global workflows: it makes no project.
    """
    start = os.path.realpath(directory)
    home = os.path.realpath(home)
    with_git = None
    ancestor = start
    while True:
        if ancestor != home and os.path.isdir(os.path.join(ancestor, STATE_DIRECTORY)):
            return ancestor
        if with_git is None and os.path.lexists(os.path.join(ancestor, ".git")):
            with_git = ancestor
        parent = os.path.dirname(ancestor)
        if parent == ancestor:
            return with_git or start
        ancestor = parent


def foreign(root: str, environment: Mapping[str, str]) -> str | None:
    """The directory of a project where another user could have put commands for us to run; None: there is none.

    Root can do that anyway, so what is root's is as good as ours, unless it is open to everybody, as /tmp is.
    """
    ours = {os.geteuid(), 0}
    if os.geteuid() == 0 and environment.get("SUDO_UID", "").isdecimal():
        ours.add(int(environment["SUDO_UID"]))
    for path in (root, *(os.path.join(root, name) for name in _PLACES_OF_COMMANDS)):
        try:
            found = os.stat(path)
        except OSError:
            continue
        if found.st_uid not in ours or (found.st_uid != os.geteuid() and found.st_mode & _WRITTEN_BY_ALL):
            return path
    return None


def state_directory(root: str) -> str:
    """The directory of the project's own files and project-wide signals."""
    return os.path.join(root, STATE_DIRECTORY)


def runs_directory(root: str) -> str:
    """Where every run of the project has a directory of its own."""
    return os.path.join(root, STATE_DIRECTORY, "runs")


def run_directory(root: str, run_id: str) -> str:
    """One run's directory: its lock, its logs, its own signals."""
    return os.path.join(root, STATE_DIRECTORY, "runs", run_id)


def signal_directories(root: str, run_id: str, workspace: str | None) -> tuple[str, ...]:
    """The directories whose signals apply to a run, its own one last."""
    places = (state_directory(root), workspace, run_directory(root, run_id))
    return tuple(place for place in places if place)


def open_directory(root: str) -> str:
    """Where every run that has not ended has an empty file: the few among the many that ever were."""
    return os.path.join(root, STATE_DIRECTORY, "open")


def daemon_lock(root: str) -> str:
    """Whoever holds this lock is the project's daemon."""
    return os.path.join(root, STATE_DIRECTORY, "sidecar.lock")


def daemon_socket(root: str) -> str:
    """Where the project's daemon serves MCP."""
    return os.path.join(root, STATE_DIRECTORY, "sidecar.sock")


def handover_socket(root: str) -> str:
    """Where the project's daemon takes runs over."""
    return os.path.join(root, STATE_DIRECTORY, "handover.sock")


def run_socket(root: str, run_id: str) -> str:
    """Where the owner of a run serves MCP to the run's agents."""
    return os.path.join(root, STATE_DIRECTORY, "runs", run_id, "mcp.sock")


def project_config(root: str) -> str:
    """The project's settings file."""
    return os.path.join(root, STATE_DIRECTORY, "config.yaml")


def user_config() -> str:
    """The person's own settings file."""
    return os.path.join(os.path.expanduser("~"), ".config", "sidecar", "config.yaml")


def default_workspaces_directory(root: str) -> str:
    """claude-iterate's directory where the project has one, so that its workspaces go on working."""
    inherited = os.path.join(root, "claude-iterate", "workspaces")
    return inherited if os.path.isdir(inherited) else os.path.join(root, STATE_DIRECTORY, "workspaces")


def make_directory(path: str) -> None:
    """Make a directory, and what is missing above it, that nobody else can write to, whatever the umask allows."""
    try:
        os.mkdir(path, _DIRECTORY)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in ("", path):  # the working directory itself is gone
            raise
        make_directory(parent)
        make_directory(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def is_name(text: str) -> bool:
    """Whether the text can name a workspace. Nothing that passes can leave its directory."""
    return bool(text) and _NAME_CHARACTERS.issuperset(text)


class Undecided(Exception):  # noqa: N818 - not an error: the full parser has to be asked
    """A settings file needs a real YAML parser."""


def quick_setting(path: str, key: str) -> str | None:
    """One top-level setting, read without a YAML parser; `Undecided` where only a parser can tell.

    The file that has the key once, at the start of a line, with a plain word or path behind it, is the one
    that people write. A file that never mentions the key does not set it. All else is undecided.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            text = file.read().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if key not in text and "\\" not in text:
        return None
    if any(character in text for character in _OTHER_LINE_BREAKS):
        raise Undecided
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    text = "\n".join(lines)
    if key not in text and "\\" not in text:
        return None
    # Quotes, block scalars, flow collections, anchors, further documents: any of these can make a line that
    # looks like the setting mean something else, or hide a second one.
    if any(mark in text for mark in _YAML_MACHINERY):
        raise Undecided
    found = [number for number, line in enumerate(lines) if key in line]
    name, separator, value = lines[found[0]].partition(": ")
    value = value.partition(" #")[0].strip(" ")
    continued = "\n".join(lines[found[0] + 1 :]).lstrip("\n").startswith(" ")
    if len(found) != 1 or name != key or not separator or continued or not _is_plain_path(value):
        raise Undecided
    return value


def open_at_once(path: str, flags: int) -> int:
    """An opener for `open`. An agent may have put a FIFO there, and to wait for its other end would keep a person
    from stopping that agent."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _is_plain_path(text: str) -> bool:
    """Whether YAML reads this as that very string: not as a number, a date, a truth value or nothing."""
    if not text or not _PLAIN_CHARACTERS.issuperset(text) or text.lower() in _YAML_WORDS:
        return False
    return text[0].isalpha() or "/" in text
