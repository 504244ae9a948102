"""Stored prompts as MCP prompts: their arguments, and the text with the values in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    GetPromptResult,
    ListPromptsResult,
    PromptArgument,
    PromptMessage,
    TextContent,
)
from mcp.types import Prompt as Listed

from sidecar.catalog import prompts
from sidecar.errors import SidecarError
from sidecar.model.parameters import bind, render_template

if TYPE_CHECKING:
    from mcp.types import GetPromptRequestParams

    from sidecar.model.parameters import Parameter


def listed(root: str) -> ListPromptsResult:
    """Every prompt there is."""
    return ListPromptsResult(
        prompts=[
            Listed(
                name=one.name,
                title=one.title or None,
                description=one.description or None,
                arguments=[
                    PromptArgument(
                        name=parameter.name,
                        description=parameter.description or None,
                        required=parameter.is_required,
                    )
                    for parameter in one.parameters
                ],
            )
            for one in prompts.listing(root)[0]
        ]
    )


def rendered(root: str, params: GetPromptRequestParams) -> GetPromptResult:
    """One prompt with the values that were given. Prompts have no tool errors: what is wrong is an invalid request."""
    try:
        prompt = prompts.find(root, params.name)
        declared = {parameter.name: parameter for parameter in prompt.parameters}
        given = {name: _value(text, declared.get(name)) for name, text in (params.arguments or {}).items()}
        values = bind(prompt.parameters, given, f"prompt {prompt.name}")
    except SidecarError as error:
        raise MCPError(INVALID_PARAMS, str(error)) from None
    message = PromptMessage(role="user", content=TextContent(text=render_template(prompt.body, values)))
    return GetPromptResult(description=prompt.description or None, messages=[message])


def _value(text: str, parameter: Parameter | None) -> Any:
    """Clients send nothing but text; what the prompt declares otherwise is JSON. `bind` says what does not fit."""
    if parameter is None or parameter.type == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
