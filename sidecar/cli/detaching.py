"""`--detach`: the run goes on without this terminal, and its reader knows where to look."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from sidecar.cli.run_named import journal_with
from sidecar.errors import SidecarError
from sidecar.service import handing_over, looking

if TYPE_CHECKING:
    from sidecar.cli.executing import Manner
    from sidecar.service.project import Project

OK = 0


def hand_over(project: Project, run_id: str, manner: Manner, **given: Any) -> int:
    """Give it to whoever executes detached runs here, and say how it is followed."""
    try:
        anyio.run(partial(handing_over.hand_over, project, run_id, **given))
    except SidecarError as error:
        raise SidecarError(f"run {run_id} is not executed: {error}") from None
    if manner.json:
        with journal_with(project.root, run_id) as (database, run):
            print(json.dumps(looking.status(database, project.root, run), indent=1, ensure_ascii=False))
    elif manner.quiet:
        print(run_id)
    else:
        print(f"run {run_id} goes on without this terminal\n")
        print(f"  sidecar logs {run_id} -f")
        print(f"  sidecar status {run_id}")
        print(f"  sidecar stop --run {run_id}")
    return OK
