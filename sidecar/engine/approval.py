"""Checks whether a run can be resumed with the feedback or the approval of a person.

A gate is a stage or a plan that an agent submitted: only approval lets the run pass it, feedback alone sends it back.
"""

from __future__ import annotations

from typing import Any

from sidecar.errors import InputError
from sidecar.store.journal import Journal, StoredRun

MAX_FEEDBACK_BYTES = 64 * 1024


def gate_of(journal: Journal, run: StoredRun) -> dict[str, Any] | None:
    """The gate that a paused run waits at; None: it waits at none."""
    end = journal.last_end(run.run_id) if run.status == "paused" else None
    waits = end.data.get("waits") if end is not None else None
    return waits if waits and "stage" in waits else None


def check(
    journal: Journal,
    run: StoredRun,
    *,
    feedback: str | None = None,
    approve: bool = False,
    asker: str | None = None,
) -> None:
    """InputError where the run cannot be resumed with this. `asker`: the run whose agent asks, where one does."""
    if feedback is not None:
        if not feedback.strip() or "\0" in feedback:
            raise InputError("the feedback has to be a text, without NUL characters")
        size, most = len(feedback.encode("utf-8", "surrogatepass")), MAX_FEEDBACK_BYTES
        if size > most:
            raise InputError(f"the feedback has at most {most} bytes, not {size}; put the rest into a file")
    gate = gate_of(journal, run)
    if gate is None:
        if approve:
            raise InputError(f"run {run.run_id} is not waiting for approval (status: {run.status})")
    elif approve and asker == run.run_id:
        raise InputError(f"an agent of run {run.run_id} cannot approve {gate['stage']!r}: that is for a person")
    elif not approve and feedback is None:
        raise InputError(
            f"run {run.run_id} waits for approval of {gate['stage']!r}: approve it (--approve, in MCP approve: true), "
            "or send it back with a text (--feedback TEXT, in MCP feedback)"
        )


def answer_text(gate: dict[str, Any], feedback: str | None, *, approved: bool) -> str:
    """The answer for the agent that submitted, when its step is done again."""
    submitted = f"You submitted {gate['stage']!r} for approval. The answer:"
    if not approved:
        return f"{submitted} {feedback}\n\nIt was not approved. Change it accordingly, and submit it again."
    remark = f"\n\n{feedback}" if feedback else ""
    return f"{submitted} It was approved. Go on from there.{remark}"
