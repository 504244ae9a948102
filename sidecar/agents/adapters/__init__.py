"""How each tool is called and what its output means: a module for each, and all adapters in one dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.agents.adapters.adapter import Adapter, AdapterCall, PlainText
from sidecar.agents.adapters.claude import CLAUDE
from sidecar.agents.adapters.codex import CODEX
from sidecar.agents.adapters.gemini import GEMINI

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sidecar.model.agent import AdapterName


def _command_arguments(call: AdapterCall) -> list[str]:
    words = list(call.assignment.definition.args)
    return words if call.prompt_via == "stdin" else [*words, call.assignment.prompt]


# Any program: the prompt goes in, what it prints is the answer.
COMMAND = Adapter(
    name="command",
    prompt_via="stdin",
    arguments=_command_arguments,
    parser=lambda _clock: PlainText(),
    prints_json=False,
)
ADAPTERS: Mapping[AdapterName, Adapter] = {adapter.name: adapter for adapter in (CLAUDE, CODEX, GEMINI, COMMAND)}
