"""Shell completion, and the shortcuts: every workflow, agent and prompt is a command of its own.

`sidecar __complete WORD…` prints what the last of these words could become, a line each, and after a tab what it is. A
shell waits for this at every tab: standard library only, and as little of it as possible.
"""

from __future__ import annotations

import os

from sidecar import layout
from sidecar.catalog import naming
from sidecar.cli.options import COMMANDS, TAKEN, Argument, CommandEntry, Option
from sidecar.errors import REPORTED
from sidecar.layout import open_at_once
from sidecar.model import ulid
from sidecar.signals import targets
from sidecar.text import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Choices = dict[str, str]  # what each is, if that helps
    Runnable = Literal["flow", "agent", "prompt"]

OK = 0
# In this order: if a workflow, an agent and a prompt have the same name, the first gets the shortcut.
KINDS: tuple[tuple[Runnable, naming.Kind], ...] = (("flow", "workflows"), ("agent", "agents"), ("prompt", "prompts"))
_RESERVED = ("list", "run")  # `flow list` is no workflow
_MOST_RUNS = 50
_HEAD_BYTES = 8192
_LONGEST = 60
_FILES = {"bash": "sidecar.bash", "zsh": "_sidecar", "fish": "sidecar.fish"}


def main(arguments: list[str], _project: str | None) -> int:
    """`sidecar completion SHELL`: print the script that makes a shell complete sidecar's words."""
    from sidecar.cli.options import parser  # noqa: PLC0415

    shell = parser("completion").parse_args(arguments).shell
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "completions", _FILES[shell])
    with open(path, encoding="utf-8") as file:
        print(file.read(), end="")
    return OK


def complete(arguments: list[str]) -> int:
    """`__complete WORD…`, or `__complete --line PROGRAM LINE` for a shell that does not pass its words one by one."""
    words = _words(*arguments[1:]) if arguments[:1] == ["--line"] and len(arguments) == 3 else arguments
    try:
        for word, about in candidates(words or [""]).items():
            print(f"{word}\t{about}" if about else word)
    except (*REPORTED, OSError):  # a message would stand in the middle of the person's line
        pass
    return OK


def candidates(words: list[str]) -> Choices:
    """What the last word could become."""
    project, words = _without_project(words)
    *before, last = words
    if before and before[-1] == "--project":
        return {}
    root = layout.find_root(project, os.environ)
    return {word: about for word, about in _next(root, before, last).items() if word.startswith(last)}


def _next(root: str, before: list[str], last: str) -> Choices:
    if not before:
        return _commands(root)
    name, before = before[0], before[1:]
    known = shortcuts(root)
    if name in known:
        name, workflow = known[name]
        before = ["run", workflow, *before]
    if name not in COMMANDS:
        return {}
    command = COMMANDS[name]
    choices: Choices = {}
    if command.actions:
        if before and before[0] in command.actions:
            command, before = command.actions[before[0]], before[1:]
        elif "run" in command.actions and (before or not last.startswith("-")):  # `flow NAME`
            choices = {} if before else dict.fromkeys(command.actions, "")
            command = command.actions["run"]
        elif not last.startswith("-"):
            return dict.fromkeys(command.actions, "")
    return choices | _of_entries(root, command, before, last)


def _of_entries(root: str, command: CommandEntry, before: list[str], last: str) -> Choices:
    """What can follow in a command after the words that are there."""
    options = {name: one for one in command.entries if isinstance(one, Option) for name in one.names}
    name, equals, _ = last.partition("=")
    if equals and name.startswith("--"):
        found = _offered(root, options[name]) if name in options else {}
        return {f"{name}={word}": about for word, about in found.items()}
    if before and before[-1] in options and options[before[-1]].metavar:
        return _offered(root, options[before[-1]])
    if last.startswith("-"):
        return dict.fromkeys([*(name for name in options if name.startswith("--")), "--help"], "")
    places = [one for one in command.entries if isinstance(one, Argument)]
    filled = _filled(before, options)
    if filled == ["iterate"] and places[0].offers == "workflows":  # its first parameter is a workspace
        return _workspaces(root)
    return _offered(root, places[len(filled)]) if len(filled) < len(places) else {}


def _filled(before: list[str], options: dict[str, Option]) -> list[str]:
    """The words before that are no option and no option's value."""
    found: list[str] = []
    takes_value = False
    for word in before:
        if takes_value:
            takes_value = False
        elif word.startswith("-"):
            takes_value = word in options and bool(options[word].metavar)
        else:
            found.append(word)
    return found


def _offered(root: str, entry: Option | Argument) -> Choices:
    """The values of an option or argument; none leaves the word to the shell."""
    if entry.choices:
        return dict.fromkeys(entry.choices, "")
    match entry.offers:
        case "workflows" | "agents" | "prompts":
            return named(root, entry.offers)
        case "workspaces":
            return _workspaces(root)
        case "runs":
            return _runs(root)
        case "files":
            return {}
    return dict.fromkeys(entry.offers.split(), "")


def _commands(root: str) -> Choices:
    found: Choices = {name: command.purpose for name, command in COMMANDS.items()}
    for shortcut, (command, name) in shortcuts(root).items():
        found[shortcut] = f"{command} run {name}"
    return found


def _workspaces(root: str) -> Choices:
    directory = targets.workspaces_directory(root, os.environ)
    return dict.fromkeys(sorted(name for name in _directories(directory) if layout.is_name(name)), "")


def _runs(root: str) -> Choices:
    """The newest first."""
    found = sorted((name for name in _directories(layout.runs_directory(root)) if ulid.is_valid(name)), reverse=True)
    return dict.fromkeys(found[:_MOST_RUNS], "")


def _directories(parent: str) -> list[str]:
    try:
        with os.scandir(parent) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _without_project(words: list[str]) -> tuple[str | None, list[str]]:
    """`--project DIR` may stand before the command."""
    if len(words) > 2 and words[0] == "--project":
        return words[1], words[2:]
    if len(words) > 1 and words[0].startswith("--project="):
        return words[0].partition("=")[2], words[1:]
    return None, words


def _words(program: str, line: str) -> list[str]:
    """The words of a line, behind the program's name, as a shell sees them; the last one may be empty."""
    words: list[str] = [""]
    quote = ""
    characters = iter(line)
    for character in characters:
        if character == "\\" and quote != "'":
            words[-1] += next(characters, "")
        elif character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        elif not quote and character.isspace():
            if words[-1]:
                words.append("")
        else:
            words[-1] += character
    return words[words.index(program) + 1 :] if program in words else words[1:]


# --- shortcuts, and what definitions say that they are for


def shortcuts(root: str) -> dict[str, tuple[Runnable, str]]:
    """Every shortcut, with the command and the name that it stands for; a name that is taken gets `_` before it."""
    names = [(command, name) for command, kind in KINDS for name in naming.known(root, kind) if name[0] != "-"]
    taken = {*TAKEN, *_RESERVED}
    found: dict[str, tuple[Runnable, str]] = {}
    others: list[tuple[Runnable, str]] = []
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


def named(root: str, kind: naming.Kind) -> Choices:
    """The definitions of a kind, each with its description."""
    return {name: _description(name, path) for name, (_, path) in naming.known(root, kind).items()}


def _description(name: str, path: str | None) -> str:
    """A definition's description, as far as it can be read without a YAML parser."""
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
    """A plain text, one in simple quotes, or a block; others are not read."""
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
    content = [line for line in lines if line.strip() and not line.startswith("#")]
    if not content or content[0].rstrip() != "workflow:":
        return lines
    indent = len(content[1]) - len(content[1].lstrip()) if len(content) > 1 else 0
    return [line[indent:] for line in content[1:]]


def _front_matter(lines: list[str]) -> list[str]:
    if not lines or lines[0].rstrip() != "---":
        return []
    rest = lines[1:]
    end = next((number for number, line in enumerate(rest) if line.rstrip() == "---"), 0)
    return rest[:end]


def _shortened(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"
