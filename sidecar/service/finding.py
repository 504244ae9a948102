"""What a look at a project or a machine found: fine, worth knowing, or something to mend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One of them; `advice` is what to do about it."""

    topic: str
    state: State
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def fine(topic: str, text: str) -> DoctorFinding:
    """As it should be."""
    return DoctorFinding(topic, "ok", text)


def note(topic: str, text: str, advice: str = "") -> DoctorFinding:
    """Nothing is broken, but somebody may want to know."""
    return DoctorFinding(topic, "note", text, advice)


def problem(topic: str, text: str, advice: str) -> DoctorFinding:
    """Something will not work, or not as it should, until it is mended."""
    return DoctorFinding(topic, "problem", text, advice)
