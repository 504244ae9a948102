"""Every command with its arguments and options, as one table: parsers, `--help` and shell completion are made from it.

Standard library only: a shell waits for completion at every tab. `stop` and `abort` are parsed by hand, in stop_abort.
"""

from __future__ import annotations

from sidecar.cli.stop_abort import FLAGS, VALUED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from typing import Any


class Option:
    """An option; without a metavar it is a switch. `offers`: what completion offers for its value, see completion."""

    def __init__(
        self,
        names: str,
        help: str,  # noqa: A002 - as in argparse
        metavar: str = "",
        offers: str = "",
        *,
        choices: tuple[str, ...] = (),
        default: Any = None,
        number: bool = False,
        repeated: bool = False,
        dest: str | None = None,
        group: str = "",
    ) -> None:
        """Options of one `group` exclude each other."""
        self.names, self.help, self.metavar, self.offers = names.split(), help, metavar, offers
        self.choices, self.default, self.number, self.repeated = choices, default, number, repeated
        self.dest, self.group = dest, group


class Argument:
    """A word without a name. `times`: "" for exactly one, `?` for at most one, `*` for any number."""

    def __init__(
        self,
        name: str,
        metavar: str,
        help: str,  # noqa: A002 - as in argparse
        times: str = "",
        offers: str = "",
        *,
        choices: tuple[str, ...] = (),
    ) -> None:
        self.name, self.metavar, self.help = name, metavar, help
        self.times, self.offers, self.choices = times, offers, choices


class CommandEntry:
    """A command: `purpose` is its line in `sidecar --help`; `actions` are commands of their own below it."""

    def __init__(
        self,
        purpose: str,
        description: str = "",
        entries: tuple[Option | Argument, ...] = (),
        epilog: str | None = None,
        usage: str | None = None,
        *,
        actions: dict[str, CommandEntry] | None = None,
        keeps_lines: bool = False,
        adds_help: bool = True,
    ) -> None:
        """`keeps_lines`: of description and epilog. Without `adds_help`, one of its own options is `--help`."""
        self.purpose, self.description, self.entries = purpose, description, entries
        self.epilog, self.usage, self.actions = epilog, usage, actions or {}
        self.keeps_lines, self.adds_help = keeps_lines, adds_help


_JSON = Option("--json", "print one JSON object")
_FORMATS = ("table", "json", "yaml")
_CLIENTS = ("claude", "codex", "gemini", "cursor", "vscode")
_SHELLS = ("bash", "zsh", "fish")
_RUN_WORDS = "its id, a part of it, `last`, or its workspace"
_OUTPUT = (
    Option("-q --quiet", "print only the result"),
    Option("--json", "print one JSON object at the end"),
)
_JSON_EVENTS = Option("--json-events", "print each event as a line of JSON")
_NO_PANEL = Option("--no-panel", "print plain lines, on a terminal, too")
_PARAM = Option("-p --param", "a parameter, by name", "KEY=VALUE", repeated=True, default=[])
_EXIT_CODES = (
    "Exit code: 0 completed, stopped or paused, 2 failed, aborted or bad usage, 3 a limit was reached, "
    "130 after Ctrl-C, 143 after SIGTERM."
)


def _run_argument(times: str = "", default: str = "") -> Argument:
    return Argument("run", "RUN", _RUN_WORDS + (f" (default: {default})" if default else ""), times, "runs")


def _list(things: str) -> CommandEntry:
    return CommandEntry(
        f"list {things}",
        f"List {things}.",
        (
            Option("--format", "default: table", "FORMAT", choices=_FORMATS, default="table"),
            Option("-v --verbose", "with parameters and files"),
            Option("--source", "project (or local), global (or user), builtin", "SOURCE", "project global builtin"),
        ),
    )


def _run(command: str, thing: str, description: str, *more: Option) -> CommandEntry:
    return CommandEntry(
        f"run one {thing}",
        description,
        (
            Argument("name", "NAME", f"the {thing}; `sidecar {command} list` shows all", "?", f"{thing}s"),
            Argument("values", "VALUE", "its required parameters, in order", "*"),
            Option("-h --help", f"show this; after NAME: the parameters of that {thing}"),
            _PARAM,
            Option("--var", "deprecated: the same as -p", "KEY=VALUE", repeated=True, default=[]),
            Option("-i --interactive", "ask for missing parameters"),
            Option("--dry-run", "print what would be done, and do nothing"),
            _OUTPUT[0],
            Option("--detach", "run without this terminal"),
            Option("--workspace", "a workspace, or a directory inside the project", "W", "workspaces"),
            _OUTPUT[1],
            _JSON_EVENTS,
            _NO_PANEL,
            *more,
        ),
        _EXIT_CODES,
        adds_help=False,
    )


def _stop_options(kind: str) -> tuple[Option, ...]:
    offers = {"--run": "runs", "--workspace": "workspaces"}
    switches = [Option(name, "") for name in sorted(FLAGS[kind]) if name.startswith("--")]
    return (*switches, Option("--wait", ""), *(Option(name, "", "X", offers.get(name, "")) for name in VALUED[kind]))


COMMANDS = {
    "init": CommandEntry(
        "create a first workflow, a workspace and settings in this project",
        "Create a project's first settings, workflow and workspace below .swissarmyhammer/. Existing files are not "
        "changed.",
    ),
    "stop": CommandEntry(
        "let the current iteration finish, then end the run",
        entries=(Argument("workspace", "WORKSPACE", "", "?", "workspaces"), *_stop_options("stop")),
    ),
    "abort": CommandEntry("end runs now, with all their agents and commands", entries=_stop_options("abort")),
    "flow": CommandEntry(
        "list workflows, or run one: sidecar flow run NAME",
        actions={
            "list": _list("workflows"),
            "run": _run(
                "flow", "workflow", "Run a workflow. `.stop` and `.abort` files end it; `sidecar resume` continues it."
            ),
        },
    ),
    "status": CommandEntry(
        "show the runs of the project, or one run in detail",
        "Show the runs of the project, newest first, or one run in detail.",
        (
            _run_argument("?"),
            _JSON,
            Option("--watch", "look again every second; at one run until it ends"),
            Option("--all", "every run", group="how many"),
            Option("--limit", "the newest N runs (20; with --json 200)", "N", number=True, group="how many"),
        ),
    ),
    "logs": CommandEntry(
        "show what happened in a run, also live",
        "Show what happened in a run, one line for each event.",
        (
            _run_argument("?", "the only live run, else the newest"),
            Option("-f --follow", "continue until the run ends"),
            Option("--agent", "what its N-th process printed", "N", number=True),
            Option("--json", "print events, or the lines of a process, as lines of JSON"),
        ),
    ),
    "resume": CommandEntry(
        "continue a run that was stopped, failed, or was interrupted",
        "Continue a run that was stopped, paused, aborted or interrupted, or failed. Completed steps are not executed "
        "again.",
        (
            _run_argument("?", "the newest that can be resumed and no agent drives"),
            *_OUTPUT,
            _JSON_EVENTS,
            _NO_PANEL,
            Option("--detach", "run without this terminal"),
            Option("--approve", "approve the stage or plan that the run waits for"),
            Option("--feedback", "text for the next agent's prompt; without --approve it sends a stage back", "TEXT"),
            Option("--take-over", "also if an outside agent works on a step: it is done again here"),
            Option("--with-changes", "continue with the workflow as its file is now"),
        ),
        "Exit code: as for `sidecar flow run`.",
    ),
    "answer": CommandEntry(
        "answer the question that a run waits for",
        "Answer the question that a paused run waits for, and continue the run.",
        (
            _run_argument(),
            Argument("value", "VALUE", "the answer, read as the question's type"),
            *_OUTPUT,
            _NO_PANEL,
            Option("--detach", "continue without this terminal"),
        ),
    ),
    "redirect": CommandEntry(
        "restart a run's current agent step with text added to its prompt",
        "Restart the current agent steps of a run with text added to their prompts.",
        (_run_argument(), Argument("text", "TEXT", "the text")),
    ),
    "workspace": CommandEntry(
        "create, list, show and clean the directories of iteration loops",
        "A workspace holds the task of an iteration loop: INSTRUCTIONS.md, TODO.md and .status.json. "
        "`sidecar iterate NAME` works on it.",
        actions={
            "init": CommandEntry(
                "create a workspace; existing files are not changed",
                entries=(
                    Argument("name", "NAME", "letters, digits, - and _"),
                    Option("--from", "copy INSTRUCTIONS.md from this file", "FILE", dest="source"),
                ),
            ),
            "list": CommandEntry("list all: progress, last run, signals", entries=(_JSON,)),
            "show": CommandEntry(
                "show one in detail", entries=(Argument("name", "NAME", "the workspace", offers="workspaces"), _JSON)
            ),
            "clean": CommandEntry(
                "remove signals, receipts and temporary files from one",
                entries=(
                    Argument("name", "NAME", "the workspace", offers="workspaces"),
                    Option("--force", "do not ask"),
                ),
            ),
        },
    ),
    "prompt": CommandEntry(
        "list prompts, show one, or give it to an agent: sidecar prompt run NAME",
        actions={
            "list": _list("prompts"),
            "run": _run(
                "prompt",
                "prompt",
                "Give a prompt to an agent. `.stop` and `.abort` files end the run; `sidecar resume` continues it.",
                Option("--agent", "the agent (default: the setting default_agent)", "NAME", "agents"),
            ),
            "show": CommandEntry(
                "print one prompt",
                "Print a prompt with its values; if a required value is missing, print it as it is in the file.",
                (
                    Argument("name", "NAME", "the prompt; `sidecar prompt list` shows all", offers="prompts"),
                    Argument("values", "VALUE", "its required parameters, in order", "*"),
                    _PARAM,
                ),
            ),
        },
    ),
    "agent": CommandEntry(
        "list agents, or run one: sidecar agent run claude 'fix the build'",
        actions={
            "list": _list("agents"),
            "run": _run(
                "agent",
                "agent",
                "Give an agent a task. `.stop` and `.abort` files end the run; `sidecar resume` continues it.",
            ),
        },
    ),
    "validate": CommandEntry(
        "check workflows and report every problem with its place",
        "Check workflows: structure, expressions, state, and every name in them.",
        (
            Argument("workflows", "FILE|NAME", "which workflows (default: all of the project)", "*", "workflows"),
            Option("--json", "print one JSON object: valid, findings"),
        ),
        "Exit code: 0 no errors (there may be warnings), 2 errors.",
    ),
    "schema": CommandEntry(
        "print the JSON Schema of workflow files, for editors",
        "Print the JSON Schema (2020-12) of workflow files.",
        epilog="Save it, and name it in the first line of a workflow, so that editors\ncomplete and check:\n\n"
        "  sidecar schema > .swissarmyhammer/workflow.schema.json\n"
        "  # yaml-language-server: $schema=../workflow.schema.json\n",
        keeps_lines=True,
    ),
    "graph": CommandEntry(
        "draw a workflow's steps and data",
        "Draw a workflow: its steps, and what its computed fields are computed from.",
        (
            Argument("workflow", "NAME|FILE", "the workflow", offers="workflows"),
            Option(
                "--format",
                "default: ascii on a terminal, mermaid elsewhere",
                "FORMAT",
                choices=("mermaid", "dot", "svg", "ascii"),
            ),
        ),
    ),
    "daemon": CommandEntry(
        "execute detached runs and serve MCP, as a long-lived process",
        "Execute detached runs, serve MCP at .swissarmyhammer/sidecar.sock, and abort runs that no process executes. "
        "SIGTERM interrupts its runs, and the next daemon resumes them; SIGHUP reads the settings again.",
        (
            Option(
                "--project",
                "a project; may be repeated (default: the setting `projects`, else the one found here)",
                "DIR",
                "files",
                repeated=True,
                default=[],
            ),
            Option("--http", "serve MCP over HTTP, too; beyond this machine it needs http_token", "[HOST:]PORT"),
        ),
    ),
    "serve": CommandEntry("serve MCP on standard input and output", entries=(Option("--project", "", "DIR", "files"),)),
    "service": CommandEntry(
        "let systemd or launchd keep the daemon running: sidecar service install",
        "Let systemd (on macOS launchd) keep the daemon of this project running. A unit that was edited by hand is "
        "backed up before it is overwritten or removed.",
        (
            Argument("action", "install|uninstall|…", "what to do", choices=("install", "uninstall", "status", "logs")),
            Option("--user", "as a user service (default, except for root)", group="scope"),
            Option("--system", "as a system service, run by the project's owner", group="scope"),
            Option("--run-as", "install --system: the account that it runs as, if not the project's owner", "NAME"),
            Option("--print", "only show what would be written or done"),
            Option("-f --follow", "logs: continue with new lines"),
            Option("-n --lines", "logs: number of lines (100)", "N", number=True, default=100),
        ),
        usage="sidecar service install|uninstall|status|logs [--user|--system] [--run-as NAME] [--print] [-f] [-n N]",
    ),
    "mcp": CommandEntry(
        "register sidecar with an MCP client: sidecar mcp install claude",
        "Add `sidecar serve` to an MCP client's configuration. The change is shown first and merged into the existing "
        "file, which is backed up. Claude Code also gets a command /workflow.",
        (
            Argument("action", "install", "the only action", choices=("install",)),
            Argument("client", "CLIENT", f"one of {', '.join(_CLIENTS)}", choices=_CLIENTS),
            Option("--user", "for all your projects (default: for this one)"),
            Option("--print", "only show what would be written"),
        ),
        usage="sidecar mcp install CLIENT [--user] [--print]",
    ),
    "demo": CommandEntry(
        "watch a run that is stopped, resumed and aborted, in a temporary project",
        "Watch what sidecar does, in about 20 seconds: a loop that is stopped and resumed, parallel tasks, "
        "and an abort with its proof. All of it is executed in a temporary project, which is removed afterwards.",
    ),
    "config": CommandEntry(
        "show the settings, and where each value comes from",
        "Show the settings. They come from defaults, the user's file, the project's file and SIDECAR_* variables; the "
        "later one wins.",
        actions={
            "show": CommandEntry("every setting with its value and origin", entries=(_JSON,)),
            "path": CommandEntry("the paths of the settings files"),
        },
    ),
    "completion": CommandEntry(
        "print a script for completion in bash, zsh or fish",
        "Print a script that completes commands, workflows, agents, prompts,\nworkspaces and runs.",
        (Argument("shell", "", "", choices=_SHELLS),),
        "To have it in every new shell:\n\n"
        "  bash   echo 'eval \"$(sidecar completion bash)\"' >> ~/.bashrc\n"
        "  zsh    echo 'eval \"$(sidecar completion zsh)\"' >> ~/.zshrc  (after compinit)\n"
        "  fish   sidecar completion fish > ~/.config/fish/completions/sidecar.fish\n",
        keeps_lines=True,
    ),
    "doctor": CommandEntry(
        "check this project and machine, and say what to do about problems",
        "Check this project and machine, and say what to do about problems.",
        (_JSON,),
        "Exit code: 0 no problems, 1 problems; their lines begin with `!`.",
    ),
    "support-bundle": CommandEntry(
        "collect what a bug report needs in one file, without secrets",
        "Collect versions, the findings of `doctor`, the settings, a summary of the journal and the last logs of runs "
        "in a .tar.gz. Secrets are masked; the journal itself, prompts, workflows and agents' output are not included.",
        (Option("-o --output", "the file (default: in this directory, named by the time)", "FILE", "files"),),
    ),
}
HIDDEN = ("own", "__complete")  # called by sidecar itself and by shells
TAKEN = (*COMMANDS, *HIDDEN)  # names that no shortcut can have


def parser(words: str) -> argparse.ArgumentParser:
    """The parser of a command (`validate`), or of one of its actions (`flow run`)."""
    name, _, action = words.partition(" ")
    command = COMMANDS[name].actions[action] if action else COMMANDS[name]
    return _fill(_new_parser(f"sidecar {words}", command), command)


def _new_parser(prog: str, command: CommandEntry) -> argparse.ArgumentParser:
    import argparse  # noqa: PLC0415 - completion parses nothing

    return argparse.ArgumentParser(
        prog=prog,
        usage=command.usage,
        description=command.description,
        epilog=command.epilog,
        add_help=command.adds_help,
        formatter_class=argparse.RawDescriptionHelpFormatter if command.keeps_lines else argparse.HelpFormatter,
    )


def _fill(made: argparse.ArgumentParser, command: CommandEntry) -> argparse.ArgumentParser:
    groups: dict[str, Any] = {}
    for entry in command.entries:
        if isinstance(entry, Argument):
            _add_argument(made, entry)
            continue
        if entry.group and entry.group not in groups:
            groups[entry.group] = made.add_mutually_exclusive_group()
        _add_option(groups.get(entry.group, made), entry)
    if command.actions:
        inner = made.add_subparsers(dest="action", metavar="|".join(command.actions), required=True)
        for name, action in command.actions.items():
            sentence = f"{action.purpose[0].upper()}{action.purpose[1:]}."
            _fill(inner.add_parser(name, help=action.purpose, description=action.description or sentence), action)
    return made


def _add_argument(made: argparse.ArgumentParser, one: Argument) -> None:
    more: dict[str, Any] = {"help": one.help or None, "metavar": one.metavar or None}
    more |= {"nargs": one.times} if one.times else {}
    more |= {"choices": one.choices} if one.choices else {}
    made.add_argument(one.name, **more)


def _add_option(made: Any, one: Option) -> None:
    more: dict[str, Any] = {"help": one.help}
    if not one.metavar:
        more["action"] = "store_true"
    else:
        more |= {"default": one.default, "action": "append" if one.repeated else "store"}
        more |= {"choices": one.choices} if one.choices else {"metavar": one.metavar}
        more |= {"type": _at_least_one} if one.number else {}
    more |= {"dest": one.dest} if one.dest else {}
    made.add_argument(*one.names, **more)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        import argparse  # noqa: PLC0415

        raise argparse.ArgumentTypeError(f"has to be a whole number of at least 1, not {text!r}")
    return int(text)
