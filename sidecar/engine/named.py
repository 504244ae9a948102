"""Workflows as people name them on a command line: by name, as a file, or all that the project has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.catalog import imports, workflows
from sidecar.errors import DefinitionError

if TYPE_CHECKING:
    from sidecar.catalog.imports import Definition
    from sidecar.catalog.lookup import Source

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Named:
    """One workflow, not loaded yet: a name of the catalog, or a file."""

    root: str
    word: str

    @property
    def is_file(self) -> bool:
        """Names have no dot and no slash."""
        return os.sep in self.word or self.word.endswith(_SUFFIXES)

    def load(self) -> Definition:
        """The definition; DefinitionError has its problems, NotFound the names that there are."""
        return imports.load(*self._located)

    def examine(self) -> imports.Examined:
        """The definition as far as it is right, and all that is wrong with it. NotFound as above."""
        try:
            located = self._located
        except DefinitionError as error:  # a file that is not read at all
            return imports.Examined(None, error.problems, {})
        return imports.examine(*located)

    @property
    def _located(self) -> tuple[str, str, Source, str]:
        return workflows.located(self.word, self.root) if self.is_file else workflows.locate(self.root, self.word)


def of_project(root: str) -> list[Named]:
    """Every workflow that is the project's own, by name."""
    return [Named(root, place.name) for place in workflows.places(root) if place.source == "project"]
