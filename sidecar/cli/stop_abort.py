"""`sidecar stop` and `sidecar abort`: write one signal file, print what that will do, and with `--wait` wait for proof.

Parsed by hand and importing as little as possible: these commands start about as fast as Python itself, and work with
no daemon, no database and no other process alive.
"""

from __future__ import annotations

import os
import sys

from sidecar import layout
from sidecar.errors import REPORTED, SidecarError, SignalError
from sidecar.signals import files, targets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.signals.files import Kind
    from sidecar.signals.receipts import Receipt
    from sidecar.signals.targets import Target

WRITTEN, FAILED, BAD_USAGE, NOT_PROVEN, INTERRUPTED = 0, 1, 2, 4, 130  # exit codes

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
                     the receipt
  --cancel           cancel the stop, if no run has consumed it yet
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
  --cancel           cancel the abort, if no run has seen it yet
  --json             one JSON object on standard output
  --project DIR      the project (default: found from the working directory)

Exit code: 0 written (with --wait: applied, no process left), 1 could not be
written or found, 2 bad usage, 4 applied but not proven within the time.
""",
}
FLAGS = {
    "stop": {"--all", "--cancel", "--json", "--help", "-h"},
    "abort": {"--cancel", "--json", "--help", "-h"},
}
VALUED = {
    "stop": {"--reason", "--run", "--workspace", "--project", "--timeout"},
    "abort": {"--reason", "--run", "--workspace", "--project"},
}
_NOT_WITH_CANCEL = ("REASON", "--reason", "--timeout", "--wait")


class UsageError(SidecarError):
    """Bad usage of the command line."""


def main(kind: Kind, arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run `sidecar stop …` or `sidecar abort …`; the result is the exit code."""
    try:
        options = _parse(kind, arguments)
        if "--help" in options or "-h" in options:
            _print(f"usage: {_USAGE[kind]}\n\n{_HELP[kind].rstrip()}")
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
        raise UsageError("--cancel goes with no reason, --timeout or --wait")
    return options


def _parse_option(kind: Kind, word: str, rest: list[str], options: dict[str, str]) -> None:
    name, equals, value = word.partition("=")
    if name in VALUED[kind]:
        if not equals and not rest:
            raise UsageError(f"{name} needs a value")
        options[name] = value if equals else rest.pop(0)
    elif name == "--wait" or word in FLAGS[kind]:
        options[name] = value
    else:
        raise UsageError(f"unknown option {word}")
    if name == "--wait" and not equals and rest and _is_seconds(rest[0]):  # else it would be the reason of an abort
        raise UsageError(f"write --wait={rest[0]}, with an equals sign")
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
        print("no longer waiting; the signal is still there", file=sys.stderr)
        return INTERRUPTED


def _sent(kind: Kind, target: Target, options: dict[str, str], *, governed: list[str], signal_id: str) -> int:
    """Print it, and wait if asked to. `governed`: the runs that were open when the signal was written."""
    path = files.path_of(target.directory, kind)
    as_json = "--json" in options
    live = target.live_runs()
    if not as_json:
        _print("\n".join(_sent_lines(kind, target, path, governed, live)))
    if "--wait" in options:
        limit_s = float(options["--wait"]) if options["--wait"] else None
        return _wait(target, kind, signal_id, limit_s, was_open=bool(governed), as_json=as_json)
    if as_json:
        runs = {"open_runs": governed, "live_runs": live}
        _print_json({"signal": kind, "signal_id": signal_id, "path": path, **runs})
    return WRITTEN


def _cancel(kind: Kind, target: Target, options: dict[str, str]) -> int:
    signal = files.cancel(target.directory, kind)
    if signal is None:
        raise SidecarError(f"nothing to cancel: there is no {files.path_of(target.directory, kind)}")
    if "--json" in options:
        _print_json({"signal": kind, "signal_id": signal.signal_id, "path": signal.path, "cancelled": True})
    else:
        _print(f"{kind.capitalize()} signal cancelled for {target.scope}: {target.name}")
    return WRITTEN


def _sent_lines(kind: Kind, target: Target, path: str, governed: list[str], live: list[str]) -> list[str]:
    """What the person reads. The first lines are public: scripts read them."""
    whose = {"project": "Every run of the project", "workspace": "Workspace", "run": "Run"}[target.scope]
    lines = [f"{kind.capitalize()} signal sent to {target.scope}: {target.name}"]
    waiting = [run_id for run_id in governed if run_id not in live]
    if kind == "stop":
        lines.append(f"{whose} will stop after current iteration completes")
    elif live:
        lines.append(f"Ending now, with every agent and command: {', '.join(live)}")
    elif not governed:
        lines.append("No run is open there")
    if waiting:
        lines.append(f"No process executes {', '.join(waiting)} now: {_ends(kind, waiting)} before the next step")
    lines += ["", f"To cancel, delete the {files.FILE_NAMES[kind]} file:", f"  rm {_typed(path)}"]
    if kind == "stop" and not governed:
        lines += ["", "No run is open there: the next run will be stopped before its first step"]
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


# --- --wait: the receipt proves what happened


_ABORT_LIMIT_S = 10.0  # the ladder takes 7 s at worst
_WITHOUT_OWNER_S = 10.0  # an owner that starts takes a few seconds; without one, no process consumes the signal
_LOOK_EVERY_S = 0.02
_GONE_FOR_S = 2.0  # `clear` moves a signal aside for a moment: only one that stays away was cancelled


def _wait(target: Target, kind: Kind, signal_id: str, limit_s: float | None, *, was_open: bool, as_json: bool) -> int:
    """Wait for the receipt and print it; the exit code. A stop without a limit waits as long as an iteration takes.

    `was_open`: a run was open when the signal was written; if it ends without a receipt, something else ended it.
    """
    import time  # noqa: PLC0415 - only for --wait, as json

    from sidecar.signals import receipts  # noqa: PLC0415

    if limit_s is None and kind == "abort":
        limit_s = _ABORT_LIMIT_S
    deadline = time.monotonic() + limit_s if limit_s is not None else float("inf")
    path = files.path_of(target.directory, kind)
    no_receipt: dict[str, object] = {"signal": kind, "signal_id": signal_id, "path": path, "state": None, "runs": []}
    last_seen = last_live = time.monotonic()
    while True:
        # In this order: what is written between the looks is found by a later one.
        governed, live = target.open_runs(), target.live_runs()
        standing = files.read(target.directory, kind)
        stands = standing is not None and standing.signal_id == signal_id
        receipt = receipts.read(path)
        mine = receipt if receipt and receipt["signal_id"] == signal_id else None
        if mine and mine["state"] != "received" and not stands:
            return _print_receipt(mine, as_json=as_json)
        if not governed:
            return _none_open(target, mine, no_receipt, stands=stands, was_open=was_open, as_json=as_json)
        was_open = True
        now = time.monotonic()
        last_seen = now if stands or mine else last_seen
        last_live = now if live else last_live
        why = None
        if now - last_seen > _GONE_FOR_S:
            why = f"the signal was cancelled or replaced; open runs: {', '.join(governed)}"
        elif not live and now > min(deadline, last_live + _WITHOUT_OWNER_S):
            why = (
                f"no process has executed {', '.join(governed)} for {now - last_live:.0f} s; the signal is still there"
            )
        elif now > deadline:
            verb = "stopped" if kind == "stop" else "proven dead"
            why = f"not {verb} within {limit_s:g} s: {', '.join(governed)}; the signal is still there"
        if why is not None:
            return _not_proven(mine or no_receipt, why, as_json=as_json)
        time.sleep(_LOOK_EVERY_S)


def _print_receipt(receipt: Receipt, *, as_json: bool) -> int:
    if as_json:
        _print_json(receipt)
    else:
        runs = ", ".join(f"run {outcome['run_id']} {outcome['status']}" for outcome in receipt["runs"])
        _print(f"{receipt['state'].capitalize()}: {runs or 'to no run'}")
        rungs = [process["rung"] for process in receipt["processes"]]
        _print(_ended_text(len(rungs), rungs.count("kill"), receipt["survivors"]))
    return WRITTEN if receipt["state"] == "applied" and receipt["survivors"] == 0 else NOT_PROVEN


def _ended_text(ended: int, killed: int, survivors: int) -> str:
    """How the processes ended: `2 processes ended (both needed SIGKILL); none left`."""
    rest = f"{survivors} still alive" if survivors else "none left"
    if not ended:
        return f"No process had to be ended; {rest}"
    who = "" if ended == 1 else "both " if ended == killed == 2 else "all " if ended == killed else f"{killed} "
    how = f" ({who}needed SIGKILL)" if killed else ""
    return f"{ended} {'process' if ended == 1 else 'processes'} ended{how}; {rest}"


def _none_open(
    target: Target,
    receipt: Receipt | None,
    no_receipt: Mapping[str, object],
    *,
    stands: bool,
    was_open: bool,
    as_json: bool,
) -> int:
    """No run is open any more: there was none, or it ended without consuming the signal."""
    if receipt and receipt["state"] != "received":
        return _print_receipt(receipt, as_json=as_json)
    kind = no_receipt["signal"]
    if was_open and (stands or kind == "abort"):  # a run that ends by itself consumes a stop; nothing else is proof
        rest = "the signal is still there" if stands else "nothing proves that its processes are gone"
        return _not_proven(receipt or no_receipt, f"the run ended without a receipt; {rest}", as_json=as_json)
    if as_json:
        _print_json(no_receipt)
    else:
        rest = "the signal waits for the next run" if stands and kind == "stop" else "there is nothing to wait for"
        _print(f"No run is open in {target.scope} {target.name}: {rest}")
    return WRITTEN


def _not_proven(shown: Mapping[str, object], why: str, *, as_json: bool) -> int:
    if as_json:
        _print_json(shown)
    print(why, file=sys.stderr)
    return NOT_PROVEN


# --- output: the signal is written by then, and a terminal or pipe that fails must not change the exit code


def _print_json(value: Mapping[str, object]) -> None:
    import json  # noqa: PLC0415 - costs as much as everything else here together

    _print(json.dumps(value))


def _print(text: str) -> None:
    try:
        try:
            print(text, flush=True)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode("ascii"), flush=True)
    except OSError:  # a closed pipe, a full disk: the interpreter would try again at its end, and fail
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
