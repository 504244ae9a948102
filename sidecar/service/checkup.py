"""What is in force in a project, what is wrong there, and what to do about it: `sidecar doctor`, for any reader."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from sidecar import config, layout
from sidecar.errors import REPORTED, ConfigError
from sidecar.service import checkup_files, checkup_machine, checkup_programs
from sidecar.service.finding import fine, note, problem
from sidecar.store import schema
from sidecar.store.db import NAME, open_database
from sidecar.store.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sidecar.config import Settings
    from sidecar.service.finding import DoctorFinding

_MEGABYTE = 1_000_000


async def findings(root: str, environment: Mapping[str, str]) -> list[DoctorFinding]:
    """Everything there is to say. Nothing is changed by looking."""
    state = layout.state_directory(root)
    found = list(_project(root))
    try:
        config.refuse_foreign(root, environment)
    except ConfigError as error:
        return [*found, problem("project", str(error), "nothing else was looked at")]
    settings = _settings(root, environment, found)
    for look in (
        checkup_machine.python(),
        checkup_machine.platform(sys.platform),
        checkup_machine.clock(state),
        checkup_machine.file_system(root),
        checkup_machine.file_events(settings),
        checkup_files.leftovers(root, environment),
        checkup_files.sockets(root),
        _database(root),
        checkup_programs.containment_in_force(settings),
    ):
        found += _as_far_as_it_goes(look)
    try:
        found += await checkup_programs.agents_and_service(root, settings, environment)
    except REPORTED as error:
        found.append(problem("agents", f"none can be started: {error}", "see containment"))
    return found


def _as_far_as_it_goes(look: Iterator[DoctorFinding]) -> Iterator[DoctorFinding]:
    """What cannot be looked at is a finding, too, and keeps nobody from the rest."""
    try:
        yield from look
    except (*REPORTED, OSError) as error:
        yield problem("doctor", f"this could not be looked at: {error}", "mend that first")


def _project(root: str) -> Iterator[DoctorFinding]:
    state = layout.state_directory(root)
    yield fine("project", root)
    if not os.path.isdir(state):
        yield note(
            "project", f"no {layout.STATE_DIRECTORY}/ yet", "`sidecar init` makes one, and so does the first run"
        )
    elif not os.access(state, os.W_OK | os.X_OK):
        yield problem("project", f"{state} may not be written", "no run can be kept there: check its owner and mode")


def _settings(root: str, environment: Mapping[str, str], found: list[DoctorFinding]) -> Settings:
    """Those that hold; the defaults, to go on with, where nobody can tell."""
    try:
        settings = config.load(root, environment)
    except ConfigError as error:
        found.append(problem("settings", str(error), "mend it; what follows is told with the defaults"))
        return config.Settings.model_validate({})
    changed = [name for name, origin in config.origins(root, environment).items() if origin != "default"]
    found.append(fine("settings", f"set here: {', '.join(changed)}" if changed else "the defaults hold"))
    found += [note("settings", doubt) for doubt in settings.doubts()]
    return settings


def _database(root: str) -> Iterator[DoctorFinding]:
    path = os.path.join(layout.state_directory(root), NAME)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        yield fine("database", "none yet: no run has been started here")
        return
    try:
        with open_database(root) as database:
            database.verify()
            runs = len(Journal(database).runs())
    except REPORTED as error:
        yield problem("database", str(error), "runs cannot be started or resumed until that is mended")
        return
    size = sum(os.path.getsize(path + suffix) for suffix in ("", "-wal") if os.path.exists(path + suffix))
    yield fine("database", f"sound, version {schema.VERSION}, {size / _MEGABYTE:.1f} MB, {runs} runs")
    if stat.S_IMODE(status.st_mode) & 0o077:
        text = f"{path} can be read by others, and prompts and environments are in it"
        yield problem("database", text, f"chmod 600 '{path}'")
