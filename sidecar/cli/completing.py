"""`sidecar __complete WORD…`: what the last of these words could become; a line each, behind a tab what it is.

A shell waits for this at every tab: standard library only, and little of it.
"""

from __future__ import annotations

import os

from sidecar import layout
from sidecar.catalog import naming
from sidecar.cli import shortcuts
from sidecar.cli.commands import COMMANDS, TAKEN
from sidecar.errors import REPORTED
from sidecar.model import ulid
from sidecar.signals import targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Choices = dict[str, str]  # what each is, if that is worth saying

OK = 0
_MOST_RUNS = 50
_RUN = "--param --interactive --dry-run --quiet --detach --workspace --json --json-events --no-panel --help"
_LIST = "--format --verbose --source --help"
OPTIONS = {
    "abort": "--reason --workspace --run --wait --cancel --json",
    "agent list": _LIST,
    "agent run": _RUN,
    "answer": "--quiet --json --detach --no-panel --help",
    "completion": "--help",
    "config show": "--json --help",
    "config path": "--help",
    "daemon": "--project --http --help",
    "demo": "--help",
    "doctor": "--json --help",
    "flow list": _LIST,
    "flow run": _RUN,
    "graph": "--format --help",
    "init": "--help",
    "logs": "--follow --agent --json --help",
    "mcp install": "--user --print --help",
    "prompt list": _LIST,
    "prompt run": f"{_RUN} --agent",
    "prompt show": "--param --help",
    "redirect": "--help",
    "resume": "--quiet --json --json-events --detach --approve --feedback --take-over --with-changes --no-panel --help",
    "schema": "--help",
    "serve": "",
    "service": "--user --system --run-as --print --follow --lines --help",
    "status": "--all --limit --json --watch --help",
    "stop": "--all --run --workspace --reason --wait --timeout --cancel --json",
    "support-bundle": "--output --help",
    "validate": "--json --help",
    "workspace clean": "--force --help",
    "workspace init": "--from --help",
    "workspace list": "--json --help",
    "workspace show": "--json --help",
}
_SUBCOMMANDS = {
    "agent": "list run",
    "completion": "bash zsh fish",
    "config": "show path",
    "flow": "list run",
    "mcp": "install",
    "prompt": "list run show",
    "service": "install uninstall status logs",
    "workspace": "init list show clean",
}
_FORMATS = {"graph": "ascii mermaid dot svg json", **dict.fromkeys(("flow", "agent", "prompt"), "table json yaml")}
_SOURCES = "project global builtin"
_CLIENTS = "claude codex gemini cursor vscode"
# Options that take a word of their own; an empty answer leaves the word to the shell.
_TAKE_A_WORD = (
    *("--reason", "--timeout", "--param", "-p", "--var", "--feedback", "--http", "--from", "--lines", "--output"),
    "--project",
)


def main(arguments: list[str]) -> int:
    """`__complete WORD…`, or `__complete --line PROGRAM LINE` where a shell does not give its words one by one."""
    words = _words(*arguments[1:]) if arguments[:1] == ["--line"] and len(arguments) == 3 else arguments
    try:
        for word, about in candidates(words or [""]).items():
            print(f"{word}\t{about}" if about else word)
    except (*REPORTED, OSError):  # nobody reads a message in the middle of a line
        pass
    return OK


def candidates(words: list[str]) -> Choices:
    """What the last word could become."""
    project, words = _without_project(words)
    *before, last = words
    if before and before[-1] == "--project":
        return {}
    root = layout.find_root(project, os.environ)
    found = _next(root, before, last)
    return {word: about for word, about in found.items() if word.startswith(last)}


def _next(root: str, before: list[str], last: str) -> Choices:
    if not before:
        return _commands(root)
    command, before = before[0], before[1:]
    known = shortcuts.known(root, TAKEN)
    if command in known:
        of, name = known[command]
        command, before = of, ["run", name, *before]
    option, equals, _ = last.partition("=")
    if equals and option.startswith("--"):
        return {f"{option}={word}": about for word, about in (_value(root, command, option) or {}).items()}
    given = _value(root, command, before[-1]) if before else None
    if given is not None:
        return given
    subcommands = _SUBCOMMANDS.get(command, "").split()
    if before and before[0] not in subcommands and command in ("flow", "agent", "prompt"):
        before = ["run", *before]  # `flow NAME`
    name = f"{command} {before[0]}" if before and f"{command} {before[0]}" in OPTIONS else command
    if last.startswith("-"):
        return dict.fromkeys(OPTIONS.get(name, "").split(), "")
    if subcommands and not before:
        return dict.fromkeys(subcommands, "") | (_positional(root, f"{command} run", []))
    return _positional(root, name, before[1:] if name != command else before)


def _positional(root: str, name: str, before: list[str]) -> Choices:
    """What can stand at the next place without a name; `before`: what stands at those before it."""
    places = [word for word in before if not word.startswith("-")]
    if name == "flow run" and places == ["iterate"]:  # its first word is a workspace
        return _workspaces(root)
    choose = _FIRST.get(name)
    return choose(root) if choose is not None and not places else {}


def _value(root: str, command: str, option: str) -> Choices | None:
    """What an option's value can be; None where it takes none."""
    match option:
        case "--workspace":
            return _workspaces(root)
        case "--run":
            return _runs(root)
        case "--format":
            return dict.fromkeys(_FORMATS.get(command, "").split(), "")
        case "--source":
            return dict.fromkeys(_SOURCES.split(), "")
        case "--agent":
            return _named(root, "agents") if command == "prompt" else {}
    return {} if option in _TAKE_A_WORD else None


def _commands(root: str) -> Choices:
    found: Choices = dict(COMMANDS)
    for shortcut, (command, name) in shortcuts.known(root, TAKEN).items():
        found[shortcut] = f"{command} run {name}"
    return found


def _named(root: str, kind: naming.Kind) -> Choices:
    return {name: shortcuts.description(name, path) for name, (_, path) in naming.known(root, kind).items()}


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


_FIRST: dict[str, Callable[[str], Choices]] = {
    "flow run": lambda root: _named(root, "workflows"),
    "agent run": lambda root: _named(root, "agents"),
    "prompt run": lambda root: _named(root, "prompts"),
    "prompt show": lambda root: _named(root, "prompts"),
    "validate": lambda root: _named(root, "workflows"),
    "graph": lambda root: _named(root, "workflows"),
    "mcp install": lambda _: dict.fromkeys(_CLIENTS.split(), ""),
    "stop": _workspaces,
    "workspace show": _workspaces,
    "workspace clean": _workspaces,
    **dict.fromkeys(("status", "logs", "resume", "answer", "redirect"), _runs),
}


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
