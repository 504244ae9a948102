"""What is wrong, or doubtful, in a file: where, how grave, and in words that say what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.catalog import definition
from sidecar.state.javascript import line_and_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sidecar.catalog.positions import Location, Place
    from sidecar.catalog.yaml_format import Document
    from sidecar.engine.checks.expressions import Severity
    from sidecar.errors import Problem
    from sidecar.model.expressions import Site


@dataclass(frozen=True, slots=True)
class Finding:
    """One of them. An error keeps the workflow from working; a warning is for its author to decide."""

    file: str
    line: int
    column: int
    severity: Severity
    message: str

    def __str__(self) -> str:
        mark = "warning: " if self.severity == "warning" else ""
        return f"{self.file}:{self.line}: {mark}{self.message}"


def of_problem(problem: Problem, severity: Severity = "error") -> Finding:
    """A problem of a file's structure as a finding."""
    return Finding(problem.path, problem.line, problem.column, severity, problem.message)


class Notes:
    """The findings of one file, while it is looked through."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.prefix = definition.prefix(document.value)
        self.found: list[Finding] = []

    def error(self, location: Location, message: str) -> None:
        """An error at an entry; the location is one inside the workflow, without the wrapper."""
        self._add(self.document.place((*self.prefix, *location)), message, "error")

    def warning(self, location: Location, message: str) -> None:
        """A warning at an entry."""
        self._add(self.document.place((*self.prefix, *location)), message, "warning")

    def inside(self, site: Site, offset: int, message: str, severity: Severity = "error") -> None:
        """A finding at an offset of a text. Sites have their location with the wrapper."""
        self._add(self.document.inside(site.location, *line_and_column(site.text, offset)), message, severity)

    def at(self, location: Location, message: str) -> None:
        """An error at the value of an entry, which may stand on another line than its key."""
        self._add(self.document.value_place((*self.prefix, *location)), message, "error")

    def _add(self, where: Place, message: str, severity: Severity) -> None:
        self.found.append(Finding(self.document.path, *where, severity, message))


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Each once: file by file as they first came up, from top to bottom."""
    files = {file: number for number, file in enumerate(dict.fromkeys(finding.file for finding in findings))}
    return sorted(dict.fromkeys(findings), key=lambda one: (files[one.file], one.line, one.column, one.severity))
