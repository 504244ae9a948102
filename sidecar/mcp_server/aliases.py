"""Names of tools: listed with underscores, and called by the seeds' dotted names as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.errors import NotFound
from sidecar.model.parameters import unknown

if TYPE_CHECKING:
    from collections.abc import Collection


def resolve(name: str, known: Collection[str]) -> str:
    """The listed name that a caller means; NotFound has the nearest."""
    listed = name.replace(".", "_")
    if listed in known:
        return listed
    raise NotFound(unknown(name[:100], known, "tool"))
