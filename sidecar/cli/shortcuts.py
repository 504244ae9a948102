"""`sidecar NAME`: every workflow, agent and prompt is a command of its own; a name that is taken gets `_` before it.

Standard library only, and little of it: help and shell completion come through here.
"""

from __future__ import annotations

from sidecar.catalog import naming
from sidecar.layout import open_at_once
from sidecar.text import printable, wrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Literal

    Command = Literal["flow", "agent", "prompt"]
    Shortcuts = dict[str, tuple[Command, str]]

# In this order: of a workflow, an agent and a prompt of one name, the first one is called by it.
_KINDS: tuple[tuple[Command, naming.Kind], ...] = (("flow", "workflows"), ("agent", "agents"), ("prompt", "prompts"))
_RESERVED = ("list", "run")  # `flow list` is no workflow
_HEAD_BYTES = 8192
_LONGEST = 60


def known(root: str, commands: Collection[str]) -> Shortcuts:
    """Every shortcut, with the command and the name that it stands for; what `commands` has is taken."""
    names = [(command, name) for command, kind in _KINDS for name in naming.known(root, kind) if name[0] != "-"]
    taken = {*commands, *_RESERVED}
    found: Shortcuts = {}
    others: list[tuple[Command, str]] = []
    for command, name in names:
        if name in taken:
            others.append((command, name))
        else:
            taken.add(name)
            found[name] = command, name
    # Last, so that a workflow that is really called `_serve` keeps its name.
    for command, name in others:
        shortcut = f"_{name}"
        while shortcut in taken:
            shortcut = f"_{shortcut}"
        taken.add(shortcut)
        found[shortcut] = command, name
    return found


def help_lines(root: str, commands: Collection[str]) -> list[str]:
    """All of them for `sidecar --help`, by kind."""
    shortcuts = known(root, commands)
    width = max(map(len, shortcuts), default=0)
    lines: list[str] = []
    for command, kind in _KINDS:
        own = sorted((name, shortcut) for shortcut, (of, name) in shortcuts.items() if of == command)
        if own:
            lines += ["", f"{kind}:"]
        places = naming.known(root, kind)
        for name, shortcut in own:
            about = description(name, places[name][1])
            told = f"{f'{about} ' if about else ''}(shortcut for '{command} run {name}')"
            lines.append(wrapped(f"  {shortcut:<{width}}  {told}", width + 4))
    return lines


def description(name: str, path: str | None) -> str:
    """What a definition says that it is for, as far as that can be told without a YAML parser."""
    if path is None:
        return naming.BUILTIN_AGENTS.get(name, "")
    try:
        with open(path, "rb", opener=open_at_once) as file:
            lines = file.read(_HEAD_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    lines = _front_matter(lines) if path.endswith(".md") else _unwrapped(lines)
    for number, line in enumerate(lines):
        if line.startswith("description:"):
            return _shortened(_scalar(line.partition(":")[2].strip(), lines[number + 1 :]))
    return ""


def _scalar(text: str, following: list[str]) -> str:
    """The text, where it is plain, or in simple quotes, or a block: what people write."""
    if text[:1] in ('"', "'"):
        inner = text[1:-1]
        return inner if text[-1:] == text[0] and text[0] not in inner and "\\" not in inner else ""
    if text[:1] in tuple("&*!%@`[{"):
        return ""
    words = [] if text[:1] in ("|", ">") else [text.partition(" #")[0]]
    for line in following:
        if not line.startswith(" "):
            break
        words.append(line.strip())
    return " ".join(words)


def _unwrapped(lines: list[str]) -> list[str]:
    """Without the key `workflow`, below which a whole definition may stand."""
    said = [line for line in lines if line.strip() and not line.startswith("#")]
    if not said or said[0].rstrip() != "workflow:":
        return lines
    indent = len(said[1]) - len(said[1].lstrip()) if len(said) > 1 else 0
    return [line[indent:] for line in said[1:]]


def _front_matter(lines: list[str]) -> list[str]:
    if not lines or lines[0].rstrip() != "---":
        return []
    rest = lines[1:]
    end = next((number for number, line in enumerate(rest) if line.rstrip() == "---"), 0)
    return rest[:end]


def _shortened(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"
