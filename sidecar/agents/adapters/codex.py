"""codex: `codex exec` with its JSON lines."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from collections.abc import Sequence

# Items that are actions; the others are messages and reasoning.
_TOOLS = frozenset({"command_execution", "mcp_tool_call", "file_change", "web_search", "collab_tool_call"})
_RECONNECTING = re.compile(r"Reconnecting\.\.\. \d+/\d+")
# Codex reports a limit in prose only. These are its own two sentences, not any text with "limit" in it.
_RATE_LIMIT = re.compile(r"last status: 429\b|hit your usage limit")
_TRY_AGAIN = re.compile(r"try again at (?:([A-Z][a-z]{2} \d{1,2})(?:st|nd|rd|th), (\d{4}) )?(\d{1,2}:\d{2} [AP]M)")
_NEEDS_APPROVAL = re.compile(r"requires approval")


def _arguments(call: AdapterCall) -> list[str]:
    definition = call.assignment.definition
    # It refuses to start outside a git repository; where a run takes place is not its decision.
    words = ["exec", "--json", "--skip-git-repo-check"]
    if definition.model is not None:
        words += ["--model", definition.model]
    if call.mcp is not None:
        words += ["-c", f"mcp_servers.{MCP_SERVER}={_server(call.mcp['command'], dict(call.mcp['env']))}"]
    words += definition.args
    return [*words, "-"] if call.prompt_via == "stdin" else [*words, "--", call.assignment.prompt]


def _server(command: Sequence[str], env: dict[str, str]) -> str:
    """The server as an inline table. The variables are named because codex passes on hardly any of its own, and
    the approval because `exec` refuses every call that would need one. It is required because codex waits for any other
    server for about a second, and then works without its tools: a step would complete that never could call back."""
    program, *rest = command
    variables = ",".join(f"{_toml(name)}={_toml(value)}" for name, value in env.items())
    arguments = ",".join(_toml(word) for word in rest)
    how = f"command={_toml(program)},args=[{arguments}],env={{{variables}}}"
    return f'{{{how},required=true,default_tools_approval_mode="approve"}}'


def _toml(text: str) -> str:
    """A TOML string. JSON's is one, but for the surrogate pairs of its ASCII form and for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _interpret(message: dict[str, Any], account: Account, now: float) -> None:
    kind = text_of(message.get("type"))
    item = mapping(message.get("item"))
    match kind:
        case "thread.started":
            account.session(text_of(message.get("thread_id")))
        case "item.started" | "item.updated" | "item.completed":
            account.goes_on()
            _item(item, account, is_over=kind == "item.completed")
        case "turn.completed":
            account.goes_on()
            usage = mapping(message.get("usage"))
            names = ("input_tokens", "output_tokens", "cached_input_tokens")
            account.used(TokenUsage(*(count_of(usage.get(name)) for name in names)))
            account.succeeded()
        case "error":
            _trouble(text_of(message.get("message")), account, now)
        case "turn.failed":
            _trouble(text_of(mapping(message.get("error")).get("message")) or "unknown error", account, now)
            account.finished = True


def _item(item: dict[str, Any], account: Account, *, is_over: bool) -> None:
    kind, item_id = text_of(item.get("type")), text_of(item.get("id"))
    if kind == "agent_message":
        if is_over:
            account.message(text_of(item.get("text")), anew=True)
    elif kind in _TOOLS:
        name = f"{text_of(item.get('server'))}.{text_of(item.get('tool'))}" if kind == "mcp_tool_call" else kind
        account.began(item_id, name)
        if is_over:
            status, error = item.get("status"), text_of(mapping(item.get("error")).get("message"))
            if status == "declined" or _NEEDS_APPROVAL.search(error):
                account.denied(name)
            account.ended(item_id, succeeded=status not in ("failed", "declined"))


def _trouble(message: str, account: Account, now: float) -> None:
    is_limit = _RATE_LIMIT.search(message) is not None
    if _RECONNECTING.match(message):
        account.waits("rate_limit" if is_limit else "retry", None, message)
        return
    if message and message != account.error:  # it reports its last error twice
        account.failed(message)
    if is_limit:
        account.waits("rate_limit", _moment(message, now), message)
    else:
        account.goes_on()


def _moment(message: str, now: float) -> float | None:
    """The moment of "try again at 4:32 AM": in local time, with a date unless it is today."""
    found = _TRY_AGAIN.search(message)
    if found is None:
        return None
    day, year, clock = found.groups()
    try:
        if day:
            return time.mktime(time.strptime(f"{day} {year} {clock}", "%b %d %Y %I:%M %p"))
        hour, minute = time.strptime(clock, "%I:%M %p")[3:5]
        today = time.localtime(now)[:3]
        return time.mktime((*today, hour, minute, 0, 0, 0, -1))
    except (ValueError, OverflowError):  # another language's month, or a moment that no clock shows
        return None


CODEX = Adapter(
    name="codex",
    program="codex",
    package="@openai/codex",
    prompt_via="stdin",
    arguments=_arguments,
    parser=lambda clock: JsonLines(_interpret, clock=clock),
)
