"""`ABORT ERROR`: how agents asked for an abort before there was a tool for it. It becomes the run's own `.abort`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from sidecar import layout
from sidecar.errors import StepFailed
from sidecar.model import run as kinds
from sidecar.signals import files, trailers

if TYPE_CHECKING:
    from sidecar.engine.context import Context

MARK = "ABORT ERROR"
_AROUND = " \t:.,;!*_`#>-–—\"'"  # what a sentence or Markdown puts between the mark and the reason, or behind it
_LONGEST_REASON = 500
_LOOK_S = 0.05


def reason_in(answer: str) -> str | None:
    """The reason that an agent's final answer gives for an abort; None where it asks for none.

    Only the last line that is not blank counts, and only its beginning: an agent may quote the mark or write about it.
    """
    line = answer.rstrip().rpartition("\n")[2]
    if not line.startswith(MARK):
        return None
    told = line.removeprefix(MARK).strip(_AROUND)[:_LONGEST_REASON]
    return told or f"the agent answered {MARK}"


async def heed(context: Context, answer: str) -> None:
    """Abort the run if the answer asks for it: then this does not return, it is cancelled as by any other abort."""
    around = context.around
    reason = reason_in(answer) if around.settings.legacy_abort_text else None
    if reason is None:
        return
    warning = (
        f"the agent's answer ends with {MARK}, which aborts the run: that text is deprecated, agents have the tool "
        "`abort` (the setting `legacy_abort_text: false` makes it a text like any other)"
    )
    context.tell(kinds.WARNING, {"text": warning})
    directory = layout.run_directory(around.root, around.run_id)
    path = files.write(directory, "abort", reason, trailers.signed(run_id=around.run_id))
    # The step must not complete meanwhile, and be the last one: then the run would be completed.
    while files.present(path):  # noqa: ASYNC110 - it ends by being cancelled
        await anyio.sleep(_LOOK_S)
    raise StepFailed(f"the agent's answer ends with {MARK}, but the abort was taken back: {reason}", kind="agent")
