"""Where runs belong, with the settings that hold there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar import config, layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.config import Settings


@dataclass(frozen=True, slots=True)
class Project:
    """One project, as the process sees it that acts in it."""

    root: str
    settings: Settings
    environment: Mapping[str, str]


def here(option: str | None, environment: Mapping[str, str] | None = None) -> Project:
    """The project that `--project`, SIDECAR_PROJECT or the working directory names."""
    environment = dict(os.environ if environment is None else environment)
    root = layout.find_root(option, environment)
    return Project(root, config.load(root, environment), environment)
