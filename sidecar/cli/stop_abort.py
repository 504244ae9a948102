"""`sidecar stop` and `sidecar abort`: write one signal file, and say what that will do.

Parsed by hand, and importing next to nothing, because whoever needs these needs them now: they start about as
fast as Python itself, and work with no daemon, no database and no other process alive.
"""

from __future__ import annotations

import os
import sys

from sidecar import layout
from sidecar.cli.outcome import BAD_USAGE, FAILED, INTERRUPTED, NOT_PROVEN, WRITTEN, say
from sidecar.errors import REPORTED, SidecarError, SignalError
from sidecar.signals import files, targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.signals.files import Kind
    from sidecar.signals.targets import Target

_USAGE = {
    "stop": "sidecar stop WORKSPACE | --run ID | --all  [OPTION ...]",
    "abort": "sidecar abort [REASON] [--workspace NAME | --run ID]  [OPTION ...]",
}
_HELP = {
    "stop": """\
Ask for a graceful stop: the current iteration completes, then the run ends,
and can be resumed. Only writes the file .stop, as `touch` would.

  WORKSPACE          the runs of this workspace; --workspace NAME is the same
  --run ID           only this run
  --all              every run of the project

  --reason TEXT      why; shown by the run and kept in its receipt
  --timeout S        if it has not stopped after S seconds, it is aborted
  --wait[=S]         wait until it has stopped, at most S seconds, and show
                     what became of it
  --cancel           take the request back, if no run has consumed it yet
  --json             one JSON object on standard output
  --project DIR      the project (default: found from the working directory)

Exit code: 0 written (with --wait: stopped), 1 could not be written or found,
2 bad usage, 4 not stopped within the time.
""",
    "abort": """\
End runs now: their agents and commands are ended at once, and the runs end as
aborted. Only writes the file .abort, as `touch` would.

  REASON             why; shown by the run and kept in its receipt
  --reason TEXT      the same, even if it is the name of a workspace or a run
  --workspace NAME   only the runs of this workspace
  --run ID           only this run; without either, every run of the project

  --wait[=S]         wait (10 s, or at most S seconds) for proof that every
                     process is gone, and show it
  --cancel           take the request back, if no run has seen it yet
  --json             one JSON object on standard output
  --project DIR      the project (default: found from the working directory)

Exit code: 0 written (with --wait: applied, and nothing survived), 1 could not
be written or found, 2 bad usage, 4 applied but not proven within the time.
""",
}
_FLAGS = {
    "stop": {"--all", "--cancel", "--json", "--help", "-h"},
    "abort": {"--cancel", "--json", "--help", "-h"},
}
_VALUED = {
    "stop": {"--reason", "--run", "--workspace", "--project", "--timeout"},
    "abort": {"--reason", "--run", "--workspace", "--project"},
}
_NOT_WITH_CANCEL = ("REASON", "--reason", "--timeout", "--wait")


class UsageError(SidecarError):
    """The words of the call are off."""


def main(kind: Kind, arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run `sidecar stop …` or `sidecar abort …`; the result is the exit code."""
    try:
        options = _parse(kind, arguments)
        if "--help" in options or "-h" in options:
            say(f"usage: {_USAGE[kind]}\n\n{_HELP[kind].rstrip()}")
            return WRITTEN
        root = layout.find_root(options.get("--project"), environment)
        target = _target(kind, options, root, environment)
        if "--cancel" in options:
            return _cancel(kind, target, options)
        return _send(kind, target, options)
    except UsageError as error:
        print(f"sidecar {kind}: {error}\nusage: {_USAGE[kind]}; see --help", file=sys.stderr)
        return BAD_USAGE
    except REPORTED as error:
        print(error, file=sys.stderr)
        return FAILED


def _parse(kind: Kind, arguments: list[str]) -> dict[str, str]:
    """Options by name; the positional word under its own: WORKSPACE for stop, REASON for abort."""
    options: dict[str, str] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += rest
            break
        if word.startswith("-") and word != "-":
            _parse_option(kind, word, rest, options)
        else:
            words.append(word)
    if len(words) > 1:
        hint = "one workspace at a time" if kind == "stop" else "put the reason in quotes"
        raise UsageError(f"too many words: {' '.join(words)!r}; {hint}")
    if words:
        options["WORKSPACE" if kind == "stop" else "REASON"] = words[0]
    if "REASON" in options and "--reason" in options:
        raise UsageError("give the reason once")
    if "--cancel" in options and any(name in options for name in _NOT_WITH_CANCEL):
        raise UsageError("--cancel takes a signal back: a reason, --timeout and --wait belong to one that is sent")
    return options


def _parse_option(kind: Kind, word: str, rest: list[str], options: dict[str, str]) -> None:
    name, equals, value = word.partition("=")
    if name in _VALUED[kind]:
        if not equals and not rest:
            raise UsageError(f"{name} needs a value")
        options[name] = value if equals else rest.pop(0)
    elif name == "--wait" or word in _FLAGS[kind]:
        options[name] = value
    else:
        raise UsageError(f"unknown option {word}")
    if name == "--wait" and not equals and rest and _is_seconds(rest[0]):  # else it would be the reason of an abort
        raise UsageError(f"write --wait={rest[0]}: its seconds stand behind an equals sign")
    if (name == "--timeout" or (name == "--wait" and equals)) and not _is_seconds(options[name]):
        raise UsageError(f"{name} takes a number of seconds above 0, not {options[name]!r}")


def _is_seconds(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _target(kind: Kind, options: dict[str, str], root: str, environment: Mapping[str, str]) -> Target:
    if kind == "stop" and "WORKSPACE" in options and "--workspace" in options:
        raise UsageError("name the workspace once")
    name = options.get("WORKSPACE", options.get("--workspace"))
    if (name is not None) + ("--run" in options) + ("--all" in options) > 1:
        raise UsageError("name one target: a workspace, a run, or the project")
    if "REASON" in options:
        _refuse_misplaced_name(root, options["REASON"], environment)
    if "--run" in options:
        return targets.run(root, options["--run"])
    if name is not None:
        return targets.workspace(root, name, environment)
    if kind == "stop" and "--all" not in options:
        raise UsageError("stop what? Name a workspace, --run ID, or --all for every run of the project")
    return targets.project(root, make="--cancel" not in options)


def _refuse_misplaced_name(root: str, reason: str, environment: Mapping[str, str]) -> None:
    """`sidecar abort my-task` would end every run of the project, with the reason `my-task`."""
    try:
        kind_of_name = targets.is_workspace_or_run(root, reason, environment)
    except SidecarError:  # settings that cannot be read must not stand between a person and the abort
        return
    if kind_of_name:
        raise UsageError(
            f"{reason} is a {kind_of_name}; write `sidecar abort --{kind_of_name} {reason}` to abort it, "
            f"or `--reason {reason}` if that is the reason"
        )


def _send(kind: Kind, target: Target, options: dict[str, str]) -> int:
    timeout_s = float(options["--timeout"]) if "--timeout" in options else None
    signed = files.new_trailers(run_id=target.name if target.scope == "run" else None, timeout_s=timeout_s)
    target.refuse_ended()
    reason = options.get("REASON", options.get("--reason", ""))
    try:
        governed = target.open_runs()
    except SignalError as error:  # whoever may write the signal need not be the one who may read the rest
        files.write(target.directory, kind, reason, signed, inside=target.inside)
        print(f"{kind.capitalize()} signal sent to {target.scope}: {target.name}; {error}", file=sys.stderr)
        return NOT_PROVEN if "--wait" in options else WRITTEN
    files.write(target.directory, kind, reason, signed, inside=target.inside)
    if target.scope == "run" and not target.open_runs():
        written = files.read(target.directory, kind)
        if written is not None and written.signal_id == signed.signal_id:  # it ended without seeing the signal
            files.clear(written)
            target.refuse_ended()
    try:
        return _sent(kind, target, options, governed=governed, signal_id=signed.signal_id or "")
    except KeyboardInterrupt:
        print("no longer waiting; the signal still stands", file=sys.stderr)
        return INTERRUPTED


def _sent(kind: Kind, target: Target, options: dict[str, str], *, governed: list[str], signal_id: str) -> int:
    """Say so, and wait if asked to. `governed`: the runs that were open when the signal was written."""
    path = files.path_of(target.directory, kind)
    as_json = "--json" in options
    live = target.live_runs()
    if not as_json:
        say("\n".join(_told(kind, target, path, governed, live)))
    if "--wait" in options:
        from sidecar.cli import wait  # noqa: PLC0415 - json, which costs as much as the rest together

        limit_s = float(options["--wait"]) if options["--wait"] else None
        return wait.for_receipt(target, kind, signal_id, limit_s, was_open=bool(governed), as_json=as_json)
    if as_json:
        import json  # noqa: PLC0415 - as above

        runs = {"open_runs": governed, "live_runs": live}
        say(json.dumps({"signal": kind, "signal_id": signal_id, "path": path, **runs}))
    return WRITTEN


def _cancel(kind: Kind, target: Target, options: dict[str, str]) -> int:
    signal = files.cancel(target.directory, kind)
    if signal is None:
        raise SidecarError(f"nothing to cancel: there is no {files.path_of(target.directory, kind)}")
    if "--json" in options:
        import json  # noqa: PLC0415

        say(json.dumps({"signal": kind, "signal_id": signal.signal_id, "path": signal.path, "cancelled": True}))
    else:
        say(f"{kind.capitalize()} signal taken back from {target.scope}: {target.name}")
    return WRITTEN


def _told(kind: Kind, target: Target, path: str, governed: list[str], live: list[str]) -> list[str]:
    """What the person reads. The first lines are the contract's; people and scripts know them."""
    whose = {"project": "Every run of the project", "workspace": "Workspace", "run": "Run"}[target.scope]
    lines = [f"{kind.capitalize()} signal sent to {target.scope}: {target.name}"]
    waiting = [run_id for run_id in governed if run_id not in live]
    if kind == "stop":
        lines.append(f"{whose} will stop after current iteration completes")
    elif live:
        lines.append(f"Ending now, with every agent and command: {', '.join(live)}")
    elif not governed:
        lines.append("Nothing is running there now, and no run waits there to go on")
    if waiting:
        lines.append(f"No process executes {', '.join(waiting)} now: {_ends(kind, waiting)} before the next step")
    lines += ["", f"To cancel, delete the {files.FILE_NAMES[kind]} file:", f"  rm {_typed(path)}"]
    if kind == "stop" and not governed:
        lines += ["", "Nothing is running there now: the next run will be stopped before its first step"]
    return lines


def _ends(kind: Kind, run_ids: list[str]) -> str:
    verb = "stopped" if kind == "stop" else "aborted"
    return f"it is {verb}" if len(run_ids) == 1 else f"they are {verb}"


def _typed(path: str) -> str:
    """The path as a person would type it here: relative where that is shorter, quoted where a shell needs it."""
    try:
        below = os.getcwd() + "/"
    except OSError:
        below = "\0"
    path = path.removeprefix(below)
    plain = path.replace("/", "").replace(".", "").replace("_", "").replace("-", "").isalnum() and path.isascii()
    return path if plain else "'" + path.replace("'", "'\\''") + "'"
