"""The names of workflows, agents and prompts, and where their files stand, without opening one.

Standard library only, and little of it: help and shell completion are made of this.
"""

from __future__ import annotations

import os

import sidecar
from sidecar.errors import NotFound, SidecarError
from sidecar.layout import STATE_DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Source = Literal["project", "global", "builtin"]
    Kind = Literal["workflows", "agents", "prompts"]

_BASES: dict[str, tuple[str, ...]] = {"workflows": (STATE_DIRECTORY, ".aromcp")}  # where it is not only the first
SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "workflows": (".yaml", ".yml"),
    "agents": (".yaml", ".yml"),
    "prompts": (".md",),
}
BUILTIN_AGENTS = {
    "claude": "Claude Code, headless.",
    "codex": "Codex, headless.",
    "gemini": "Gemini CLI, headless.",
    "command": "Any command; the prompt comes on its standard input.",
}
_SOURCES: dict[str, Source] = {
    "project": "project",
    "local": "project",
    "global": "global",
    "user": "global",
    "builtin": "builtin",
}
_MOST_NAMES = 50
_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-:")


def is_name(text: str) -> bool:
    """Whether the text can name a definition. Nothing that passes can leave its directory."""
    return bool(text) and _CHARACTERS.issuperset(text)


def directories(root: str, kind: str) -> list[tuple[Source, str]]:
    """Where files of a kind are looked for, first come first, but for the built-in ones."""
    homes: list[tuple[Source, str]] = [("project", root), ("global", os.path.expanduser("~"))]
    bases = _BASES.get(kind, (STATE_DIRECTORY,))
    return [(source, os.path.join(home, base, kind)) for source, home in homes for base in bases]


def builtin_directory(kind: str) -> str:
    """Where the built-in files are: inside the package once it is installed; workflows are beside it in a checkout."""
    package = os.path.dirname(os.path.abspath(sidecar.__file__))
    inside = os.path.join(package, "builtin", kind)
    checkout = os.path.dirname(package)
    # Only a checkout has a pyproject.toml there; in site-packages, `workflows` would be somebody else's package.
    if not os.path.isdir(inside) and os.path.isfile(os.path.join(checkout, "pyproject.toml")):
        return os.path.join(checkout, kind)
    return inside


def files(directory: str, suffixes: Sequence[str]) -> dict[str, str]:
    """The definitions in a directory, by name. The listing is asked, not the path, so that names stay case-sensitive
    also where the file system is not. OSError where it cannot be listed; one that is not there has none."""
    try:
        entries = sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found: dict[str, str] = {}
    for suffix in suffixes:
        for entry in entries:
            name = entry.removesuffix(suffix)
            if name != entry and is_name(name):
                found.setdefault(name, os.path.join(directory, entry))
    return found


def stray(root: str, kind: Kind, source: Source, path: str) -> str | None:
    """Why a file of a project is not read: it is a link that leads out of the project's directories of its kind, and a
    project that somebody else wrote could show what is elsewhere. A person's own files may be links."""
    if source != "project" or not os.path.islink(path):
        return None
    real = os.path.realpath(path)
    own = [directory for where, directory in directories(root, kind) if where == "project"]
    if any(real.startswith(os.path.join(os.path.realpath(directory), "")) for directory in own):
        return None
    return f"a link that leads out of {os.path.dirname(path)}: put the file itself there"


def source_named(text: str) -> Source:
    """A source as people filter by it: `local` and `user` are other words for the first two."""
    found = _SOURCES.get(text)
    if found is None:
        raise SidecarError(f"unknown source {text!r}: one of {', '.join(_SOURCES)}")
    return found


def find(root: str, kind: Kind, name: str) -> tuple[Source, str | None]:
    """Where the definition of that name is. NotFound has the names that exist, the nearest first."""
    if not is_name(name):
        raise NotFound(f"{name!r} cannot be a name: letters, digits, '-', '_' and ':' only")
    entries = listed(root, kind)
    if name in entries:
        return entries[name]
    from difflib import SequenceMatcher  # noqa: PLC0415 - only for the message

    names = sorted(entries, key=lambda other: (-SequenceMatcher(None, name.lower(), other.lower()).ratio(), other))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    searched = [*(directory for _, directory in directories(root, kind)), builtin_directory(kind)]
    looked = "" if kind == "agents" else f"; looked in {', '.join(searched)}"
    raise NotFound(f"no such {kind[:-1]}: {name}; available: {', '.join(names[:_MOST_NAMES]) or 'none'}{more}{looked}")


def listed(root: str, kind: Kind) -> dict[str, tuple[Source, str | None]]:
    """As `known`; SidecarError where a directory cannot be listed."""
    problems: list[str] = []
    found = known(root, kind, problems)
    if problems:
        raise SidecarError(problems[0])
    return found


def known(root: str, kind: Kind, problems: list[str] | None = None) -> dict[str, tuple[Source, str | None]]:
    """Every name of a kind with its source and its file, sorted; None: it is in the program itself.

    A directory that cannot be listed has no names; the reason is appended to `problems`.
    """
    found: dict[str, tuple[Source, str | None]] = {}
    for source, directory in [*directories(root, kind), ("builtin", builtin_directory(kind))]:
        try:
            here = files(directory, SUFFIXES[kind])
        except OSError as error:
            if problems is not None:
                problems.append(f"cannot list {directory}: {error.strerror or error}")
            continue
        for name, path in here.items():
            found.setdefault(name, (source, path))
    for name in BUILTIN_AGENTS if kind == "agents" else ():
        found.setdefault(name, ("builtin", None))
    return dict(sorted(found.items()))
