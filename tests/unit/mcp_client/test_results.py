"""What a tool's answer is as a step's result."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sidecar.mcp_client import client


def answer(*content: dict[str, Any], **more: object) -> Any:
    from mcp_types import CallToolResult

    return CallToolResult.model_validate({"content": list(content), **more})


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


def test_structured_content_wins_over_text() -> None:
    assert client.value_of(answer(text("[1]"), structuredContent={"a": [1, None]})) == {"a": [1, None]}


@pytest.mark.parametrize("value", [{"a": [1, 2.5, None, True]}, [], 12, "quoted", None, {"ü": "\U0001f9c0"}])
def test_text_that_is_json_is_its_value(value: object) -> None:
    assert client.value_of(answer(text(json.dumps(value)))) == value


@pytest.mark.parametrize(
    "words", ["", "plain", "{", "NaN", "[Infinity]", "1e999", '{"a": 1e999}', '"\\ud800"', "[" * 10_000, "9" * 9_999]
)
def test_text_that_is_not_json_stays_text(words: str) -> None:
    assert client.value_of(answer(text(words))) == words


def test_several_texts_are_joined() -> None:
    assert client.value_of(answer(text("a"), text("b"))) == "a\nb"
    assert client.value_of(answer(text("[1,"), text("2]"))) == [1, 2]


def test_other_blocks_keep_their_type() -> None:
    image = {"type": "image", "data": "R0lG", "mimeType": "image/gif"}
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    assert client.value_of(answer(image)) == image
    assert client.value_of(answer(text("see"), image, link)) == [text("see"), image, link]


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        client.value_of(answer(structuredContent={"a": float("inf")}))


def test_the_mask_is_applied_wherever_text_stands() -> None:
    result = answer(structuredContent={"key": ["my secret", {"secret": 1}]})
    assert client.value_of(result, lambda shown: shown.replace("secret", "***")) == {"key": ["my ***", {"***": 1}]}


def test_the_sdk_is_not_imported_before_a_server_is_opened() -> None:
    code = "import sys, sidecar.mcp_client.client, sidecar.engine.steps.mcp_call; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in found.stdout.split() if name.partition(".")[0] in ("mcp", "mcp_types", "httpx2")]
