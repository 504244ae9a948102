"""Which directory a signal goes to: the project's, a workspace's, or a run's."""

from __future__ import annotations

import os

from sidecar import layout
from sidecar.errors import SignalError
from sidecar.model import ulid
from sidecar.signals import run_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES_SHOWN = 20


class Target:
    """A signal directory, what it is called, and which open runs a signal there governs."""

    __slots__ = ("directory", "name", "root", "scope")

    def __init__(self, root: str, scope: str, name: str, directory: str) -> None:
        self.root = root
        self.scope = scope
        self.name = name
        self.directory = directory

    @property
    def inside(self) -> str | None:
        """What has to hold it still when it is written to: workspaces are where others work, too."""
        return self.root if self.scope == "workspace" else None

    def open_runs(self) -> list[str]:
        """The runs that a signal written here governs: those that have not ended."""
        if self.scope == "run":
            return [self.name] if run_lock.mark(self.root, self.name) else []
        return run_lock.open_runs(self.root, workspace=self.directory if self.scope == "workspace" else None)

    def live_runs(self) -> list[str]:
        """Those of them that a process executes now."""
        return [run_id for run_id in self.open_runs() if run_lock.is_live(self.root, run_id)]

    def refuse_ended(self) -> None:
        """SignalError where this is a run that has ended: nothing written there could ever apply."""
        if self.scope == "run" and not self.open_runs():
            raise SignalError(
                f"run {self.name} has ended, and takes no more signals; `sidecar status {self.name}` says how"
            )


def project(root: str, *, make: bool = True) -> Target:
    """Every run of the project. To write, the directory is made if need be: the first signal may precede any run."""
    directory = layout.state_directory(root)
    try:
        if make:
            layout.make_directory(directory)
    except OSError as error:
        raise SignalError(f"cannot make {directory}: {error.strerror}") from None
    return Target(root, "project", root, directory)


def run(root: str, run_id: str) -> Target:
    """One run, by its id."""
    directory = layout.run_directory(root, run_id)
    if not ulid.is_valid(run_id) or not os.path.isdir(directory):
        if ulid.is_valid(run_id) and os.path.exists(os.path.join(layout.open_directory(root), run_id)):
            raise SignalError(
                f"the directory of run {run_id} was removed, so that no signal can reach it; a process that executes "
                "the run notices that within 2 s, and ends it with its agents"
            )
        known = sorted((name for name in _entries(layout.runs_directory(root)) if ulid.is_valid(name)), reverse=True)
        none = f"no run has a directory in {layout.runs_directory(root)}"
        raise SignalError(f"Run not found: {run_id!r} {_listed(known, none)}")
    return Target(root, "run", run_id, directory)


def workspace(root: str, name: str, environment: Mapping[str, str]) -> Target:
    """The runs of one workspace, by its name."""
    if not layout.is_name(name):
        raise SignalError(f"not a workspace name: {name!r}; one has letters, digits, - and _ only")
    parent = workspaces_directory(root, environment)
    try:
        directory = os.path.realpath(os.path.join(parent, name))
    except OSError as error:  # swapped for something else while its links were followed
        raise SignalError(f"cannot look at workspace {name}: {error.strerror}") from None
    if not os.path.isdir(directory):
        known = sorted(filter(layout.is_name, _entries(parent)))
        raise SignalError(f"Workspace not found: {name} {_listed(known, f'there is none in {parent}')}")
    if not (directory + "/").startswith(root.rstrip("/") + "/"):
        raise SignalError(f"workspace {name} is refused: it leads outside the project, to {directory}")
    return Target(root, "workspace", name, directory)


def workspaces_directory(root: str, environment: Mapping[str, str]) -> str:
    """Where the project's workspaces are. Almost always known without a YAML parser."""
    setting = environment.get("SIDECAR_WORKSPACES_DIR")
    try:
        for path in (layout.project_config(root), layout.user_config()):
            setting = setting or layout.quick_setting(path, "workspaces_dir")
    except layout.Undecided:
        from sidecar import config  # noqa: PLC0415 - yaml and pydantic, only where they are needed

        setting = config.read(root, environment).workspaces_dir
    return os.path.join(root, os.path.expanduser(setting)) if setting else layout.default_workspaces_directory(root)


def is_workspace_or_run(root: str, text: str, environment: Mapping[str, str]) -> str | None:
    """`workspace` or `run` if the text names one: a reason that does is probably a misplaced argument."""
    if layout.is_name(text) and os.path.isdir(os.path.join(workspaces_directory(root, environment), text)):
        return "workspace"
    return "run" if ulid.is_valid(text) and os.path.isdir(layout.run_directory(root, text)) else None


def _entries(directory: str) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if os.path.isdir(os.path.join(directory, name))]
    except OSError:
        return []


def _listed(names: list[str], none: str) -> str:
    if not names:
        return f"({none})"
    more = f", and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"(available: {', '.join(names[:_NAMES_SHOWN])}{more})"
