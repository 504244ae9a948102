"""Durations of a definition where a run needs them: templates filled in, and an error that says which key is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.errors import StepFailed

if TYPE_CHECKING:
    from sidecar.engine.evaluation import View


def positive_s(view: View, given: float | str | None, key: str) -> float | None:
    """A duration longer than nothing, in seconds; None where there is none, or a template yields null."""
    found = duration_s(view, given, key)
    if found == 0:
        raise StepFailed(f"{key} has to be longer than nothing")
    return found


def duration_s(view: View, given: float | str | None, key: str) -> float | None:
    """A duration in seconds, which may be 0; None where there is none, or a template yields null."""
    try:
        return view.seconds(given)
    except ValueError as error:
        raise StepFailed(f"{key}: {error}") from None
