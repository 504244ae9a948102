"""How each tool is called and what it says: one adapter a file, all of them in one plain dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.agents.adapters.claude import CLAUDE
from sidecar.agents.adapters.codex import CODEX
from sidecar.agents.adapters.command import COMMAND
from sidecar.agents.adapters.gemini import GEMINI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.agents.adapters.adapter import Adapter
    from sidecar.model.agent import AdapterName

ADAPTERS: Mapping[AdapterName, Adapter] = {adapter.name: adapter for adapter in (CLAUDE, CODEX, GEMINI, COMMAND)}
