"""gemini: Gemini CLI, headless, with its stream-json output."""

from __future__ import annotations

import re
from typing import Any

from sidecar.agents.adapters.adapter import (
    MCP_SERVER,
    Account,
    Adapter,
    AdapterCall,
    JsonLines,
    TokenUsage,
    count_of,
    mapping,
    text_of,
)

# That it waits and asks again is on stderr only.
_RETRYING_AFTER = re.compile(r"Retrying after (\d{1,9})ms")
_RETRYING = re.compile(r"Attempt \d+ failed with status (\d+)")
_RATE_LIMIT = re.compile(r'"code": ?429\b|RESOURCE_EXHAUSTED')


def _arguments(call: AdapterCall) -> list[str]:
    definition = call.assignment.definition
    # In a directory that is not trusted yet it refuses to run, and headless no person can trust it.
    words = ["--output-format", "stream-json", "--skip-trust"]
    if definition.model is not None:
        words += ["--model", definition.model]
    words += definition.args
    # One word: a prompt that begins with a dash would be taken for an option.
    return words if call.prompt_via == "stdin" else [*words, f"--prompt={call.assignment.prompt}"]


class _Interpreter:
    """Understands one line at a time; an answer comes in pieces, and a tool call ends it."""

    def __init__(self) -> None:
        self._begins_anew = True

    def __call__(self, message: dict[str, Any], account: Account, _now: float) -> None:
        kind = text_of(message.get("type"))
        if kind in ("tool_use", "tool_result", "result") or message.get("role") == "assistant":
            account.goes_on()
        match kind:
            case "init":
                account.session(text_of(message.get("session_id")))
            case "message":
                if message.get("role") == "assistant":
                    anew = self._begins_anew or message.get("delta") is not True
                    account.message(text_of(message.get("content")), anew=anew)
                    self._begins_anew = False
            case "tool_use":
                self._begins_anew = True
                account.began(text_of(message.get("tool_id")), text_of(message.get("tool_name")))
            case "tool_result":
                _tool_result(message, account)
            case "error":
                if message.get("severity") != "warning":
                    account.failed(text_of(message.get("message")) or "unknown error")
            case "result":
                _result(message, account)


def _tool_result(message: dict[str, Any], account: Account) -> None:
    call_id = text_of(message.get("tool_id"))
    if mapping(message.get("error")).get("type") == "policy_violation":
        account.denied(account.tool(call_id))
    account.ended(call_id, succeeded=message.get("status") != "error")


def _result(message: dict[str, Any], account: Account) -> None:
    stats = mapping(message.get("stats"))
    account.used(TokenUsage(*(count_of(stats.get(name)) for name in ("input_tokens", "output_tokens", "cached"))))
    account.succeeded()
    if message.get("status") == "error":
        error = text_of(mapping(message.get("error")).get("message")) or "unknown error"
        account.failed(error)
        if _RATE_LIMIT.search(error):
            account.waits("rate_limit", None, error)


def _interpret_stderr(line: str, account: Account, now: float) -> None:
    after = _RETRYING_AFTER.search(line)
    retrying = _RETRYING.search(line)
    if after:  # this is for quotas only; every other reason has the sentence below
        account.waits("rate_limit", now + int(after.group(1)) / 1000)
    elif retrying:
        account.waits("rate_limit" if retrying.group(1) == "429" else "retry", None)


GEMINI = Adapter(
    name="gemini",
    program="gemini",
    package="@google/gemini-cli",
    prompt_via="stdin",
    arguments=_arguments,
    parser=lambda clock: JsonLines(_Interpreter(), _interpret_stderr, clock=clock),
    # It has no option for a server, and takes a settings file named by a variable only if root owns it. A server in
    # the person's own settings inherits the variables that lead it to the run.
    mcp_by_hand=f"gemini mcp add --scope user {MCP_SERVER} sidecar serve",
)
