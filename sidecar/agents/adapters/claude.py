"""claude: Claude Code, headless, with its stream-json output."""

from __future__ import annotations

import json
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
    mappings,
    number_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_REMEMBERED_MESSAGES = 256


def _arguments(call: AdapterCall) -> list[str]:
    definition = call.assignment.definition
    words = ["-p", "--output-format", "stream-json", "--verbose"]
    if definition.model is not None:
        words += ["--model", definition.model]
    if definition.limits.max_cost_usd is not None:
        # It reports its cost only at its end, which is too late to hold it to a budget from outside.
        words += ["--max-budget-usd", repr(definition.limits.max_cost_usd)]
    if call.mcp is not None:
        program, *rest = call.mcp["command"]
        server = {"type": "stdio", "command": program, "args": rest, "env": dict(call.mcp["env"])}
        words += ["--mcp-config", json.dumps({"mcpServers": {MCP_SERVER: server}})]
        # Headless, no person can permit a call of our own tools.
        words += ["--allowedTools", f"mcp__{MCP_SERVER}"]
    words += definition.args
    # Several of its options take as many words as follow: only `--` keeps the prompt from becoming one of them.
    return words if call.prompt_via == "stdin" else [*words, "--", call.assignment.prompt]


class _Interpreter:
    """Understands one line at a time. It remembers which message had which usage, because a message with several
    parts comes as several lines, each with the usage of the whole."""

    def __init__(self) -> None:
        self._usage: dict[str, TokenUsage] = {}
        self._handlers: dict[str, Callable[[dict[str, Any], Account, float], None]] = {
            "system": self._system,
            "assistant": self._assistant,
            "user": self._user,
            "rate_limit_event": self._rate_limit,
            "control_request": self._control_request,
            "result": self._result,
        }

    def __call__(self, message: dict[str, Any], account: Account, now: float) -> None:
        account.session(text_of(message.get("session_id")))
        handler = self._handlers.get(text_of(message.get("type")))
        if handler is not None:
            handler(message, account, now)

    def _system(self, message: dict[str, Any], account: Account, now: float) -> None:
        match message.get("subtype"):
            case "api_retry":
                delay_ms = number_of(message.get("retry_delay_ms"))
                limited = message.get("error_status") in (429, 529) or message.get("error") == "rate_limit"
                until = None if delay_ms is None else now + delay_ms / 1000
                account.waits("rate_limit" if limited else "retry", until, text_of(message.get("error")))
            case "session_state_changed":
                if message.get("state") == "requires_action":
                    account.waits("permission", None)
                elif message.get("state") == "running":  # `idle` comes last of all, and must not undo a rate limit
                    account.goes_on()
            case "permission_denied":
                account.denied(text_of(message.get("tool_name")))

    def _assistant(self, line: dict[str, Any], account: Account, _now: float) -> None:
        if text_of(line.get("error")):
            return  # not the model's words: the tool puts its own error into its mouth, and repeats it at the end
        account.goes_on()
        message = mapping(line.get("message"))
        # What a sub-agent says goes to the agent that called it; it is not the answer.
        is_answer = line.get("parent_tool_use_id") is None
        for part in mappings(message.get("content")):
            if part.get("type") == "text" and is_answer:
                account.message(text_of(part.get("text")), anew=True)
            elif part.get("type") == "tool_use":
                account.began(text_of(part.get("id")), text_of(part.get("name")))
        self._count(text_of(message.get("id")), _tokens(mapping(message.get("usage"))), account)

    def _count(self, message_id: str, tokens: TokenUsage, account: Account) -> None:
        before = self._usage.pop(message_id, TokenUsage())
        if tokens != before:
            total = account.tokens
            account.used(
                TokenUsage(
                    total.input + tokens.input - before.input,
                    total.output + tokens.output - before.output,
                    total.cached + tokens.cached - before.cached,
                )
            )
        self._usage[message_id] = tokens
        if len(self._usage) > _REMEMBERED_MESSAGES:
            del self._usage[next(iter(self._usage))]

    def _user(self, line: dict[str, Any], account: Account, _now: float) -> None:
        account.goes_on()
        for part in mappings(mapping(line.get("message")).get("content")):
            if part.get("type") == "tool_result":
                account.ended(text_of(part.get("tool_use_id")), succeeded=part.get("is_error") is not True)

    def _rate_limit(self, line: dict[str, Any], account: Account, _now: float) -> None:
        info = mapping(line.get("rate_limit_info"))
        if info.get("status") == "rejected" and info.get("overageStatus") not in ("allowed", "allowed_warning"):
            account.waits("rate_limit", number_of(info.get("resetsAt")), text_of(info.get("rateLimitType")))

    def _control_request(self, line: dict[str, Any], account: Account, _now: float) -> None:
        request = mapping(line.get("request"))
        if request.get("subtype") == "can_use_tool":
            account.waits("permission", None, text_of(request.get("tool_name")))

    def _result(self, line: dict[str, Any], account: Account, now: float) -> None:
        models = [mapping(model) for model in mapping(line.get("modelUsage")).values()]
        tokens = _sum([_model_tokens(model) for model in models]) if models else _tokens(mapping(line.get("usage")))
        account.used(tokens, number_of(line.get("total_cost_usd")))
        account.structured = line.get("structured_output")
        for denial in mappings(line.get("permission_denials")):
            account.denied(text_of(denial.get("tool_name")))
        text = text_of(line.get("result"))
        account.succeeded()
        if line.get("is_error") is True:
            errors = line.get("errors")
            reported = [text_of(error) for error in errors] if isinstance(errors, list) else []
            account.failed("; ".join(filter(None, reported)) or text or text_of(line.get("subtype")) or "unknown error")
            account.budget_reached = line.get("subtype") == "error_max_budget_usd"
        else:
            account.answered(text)
        if line.get("api_error_status") == 429:
            account.waits("rate_limit", account.known_end(now), "rate_limit")
        else:
            account.goes_on()


def _tokens(usage: dict[str, Any]) -> TokenUsage:
    cached = count_of(usage.get("cache_read_input_tokens"))
    fresh = count_of(usage.get("input_tokens")) + count_of(usage.get("cache_creation_input_tokens"))
    return TokenUsage(fresh + cached, count_of(usage.get("output_tokens")), cached)


def _model_tokens(usage: dict[str, Any]) -> TokenUsage:
    cached = count_of(usage.get("cacheReadInputTokens"))
    fresh = count_of(usage.get("inputTokens")) + count_of(usage.get("cacheCreationInputTokens"))
    return TokenUsage(fresh + cached, count_of(usage.get("outputTokens")), cached)


def _sum(parts: list[TokenUsage]) -> TokenUsage:
    return TokenUsage(sum(p.input for p in parts), sum(p.output for p in parts), sum(p.cached for p in parts))


CLAUDE = Adapter(
    name="claude",
    program="claude",
    package="@anthropic-ai/claude-code",
    prompt_via="stdin",
    arguments=_arguments,
    parser=lambda clock: JsonLines(_Interpreter(), clock=clock),
    # Without it nothing shows that the agent waits for a permission.
    environment={"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS": "1"},
)
