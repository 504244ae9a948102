"""The real claude, codex and gemini, on a model of our own: they answer, hang, are ended, and leave nothing.

Optional (`scripts/test --real-agents`): the tools come from npm and are not ours to install.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

import anyio
import psutil
import pytest

from sidecar.agents.adapters import ADAPTERS
from sidecar.agents.adapters.adapter import SessionStarted, ToolBegan
from sidecar.agents.containment import choose
from sidecar.agents.supervisor import Launch, Supervisor
from sidecar.errors import ConfigError
from sidecar.model.agent import AgentDefinition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sidecar.agents.adapters.adapter import Event, McpConfiguration, Parser
    from sidecar.agents.containment import Setting
    from sidecar.agents.supervisor import Agent
    from sidecar.model.agent import AdapterName

DEADLINE_S = 60  # generous: a cold start of these tools on a busy machine takes seconds
ANSWER = "the canned answer"


@dataclass
class Script:
    """What the model does: nothing, for ever; or call the tool, if one is named, then answer."""

    hangs: bool = False
    tool: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    namespace: str | None = None


# --- the model: just enough of three vendors' protocols


class Model(ThreadingHTTPServer):
    """A model on loopback. `asked` is set when the first request for an answer has come in."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = Script()
        self.asked = threading.Event()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: Model
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._reply("application/json", b"")

    def do_GET(self) -> None:
        self._reply("application/json", b'{"data": [], "models": []}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        text = json.dumps(body)
        if not any(word in self.path for word in ("/v1/messages", "/responses", "enerateContent")):
            return self._reply("application/json", b"{}")
        self.server.asked.set()
        if self.server.script.hangs:
            self.server.closing.wait()
        called = any(word in text for word in ('"tool_result"', '"function_call_output"', '"functionResponse"'))
        script = self.server.script if not called and body.get("tools", "responses" in self.path) else Script()
        if "/v1/messages" in self.path:
            events = _anthropic(script)
        elif "/responses" in self.path:
            events = _openai(script)
        else:
            events = [_gemini(script)]
            if "stream" not in self.path:
                return self._reply("application/json", json.dumps(events[0]).encode())
        # Gemini's client takes frames that begin with `data:` only; the other two want the name of the event.
        named = [f"event: {event['type']}\n" if "type" in event else "" for event in events]
        frames = [f"{name}data: {json.dumps(event)}\n\n" for name, event in zip(named, events, strict=True)]
        return self._reply("text/event-stream", "".join(frames).encode())

    def _reply(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _anthropic(script: Script) -> list[dict[str, Any]]:
    usage = {"input_tokens": 5, "output_tokens": 5}
    message = {
        "id": uuid.uuid4().hex,
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": usage,
    }
    if script.tool:
        block: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": script.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(script.arguments)}
    else:
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": ANSWER}
    reason = {"stop_reason": "tool_use" if script.tool else "end_turn", "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def _openai(script: Script) -> list[dict[str, Any]]:
    if script.tool:
        item: dict[str, Any] = {"type": "function_call", "id": "f1", "call_id": "c1", "name": script.tool}
        item["arguments"] = json.dumps(script.arguments)
        if script.namespace:
            item["namespace"] = script.namespace
    else:
        content = [{"type": "output_text", "text": ANSWER}]
        item = {"type": "message", "id": "m1", "role": "assistant", "content": content}
    usage = {"input_tokens": 5, "output_tokens": 5, "total_tokens": 10}
    return [
        {"type": "response.created", "response": {"id": "r1"}},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"id": "r1", "usage": usage}},
    ]


def _gemini(script: Script) -> dict[str, Any]:
    part = {"functionCall": {"name": script.tool, "args": script.arguments}} if script.tool else {"text": ANSWER}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 5}}


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


# --- the tools


class Tool:
    """One installed tool, in a project and a home of its own."""

    def __init__(self, name: AdapterName, program: str, root: Path, model: Model) -> None:
        self.name = name
        self.adapter = ADAPTERS[name]
        self.model = model
        self.project = root / "project"
        self.home = root / "home"
        self.token = uuid.uuid4().hex
        (self.home / ".gemini").mkdir(parents=True)
        (self.home / ".codex").mkdir()
        self.settings: dict[str, Any] = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
        self.gemini_settings = self.home / ".gemini" / "settings.json"
        self.gemini_settings.write_text(json.dumps(self.settings))
        self.project.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            self.adapter.variable: program,
            "SIDECAR_TEST_TOKEN": self.token,
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",
            "ANTHROPIC_BASE_URL": model.url,
            "GOOGLE_GEMINI_BASE_URL": model.url,
            **dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"), "not-a-key"),
        }
        provider = f'{{name="own",base_url="{model.url}/v1",wire_api="responses",env_key="OPENAI_API_KEY"}}'
        codex = ["-c", f"model_providers.own={provider}", "-c", 'model_provider="own"']
        # Without a model gemini first asks which one to take, and expects JSON.
        self.args: dict[str, list[str]] = {"claude": [], "codex": codex, "gemini": ["--model", "gemini-2.5-flash"]}
        self.permit = {
            "claude": ["--allowedTools", "Bash"],
            "codex": ["--sandbox", "danger-full-access"],
            "gemini": ["--approval-mode", "yolo"],
        }

    def launch(
        self, *, mcp: McpConfiguration | None = None, permit: bool = False, via: Literal["stdin", "argument"]
    ) -> Launch:
        args = self.args[self.name] + (self.permit[self.name] if permit else [])
        definition = AgentDefinition(adapter=self.name, args=tuple(args), prompt_via=via)
        assignment = definition.assign(self.name, {"prompt": "- go"})
        call = self.adapter.invocation(assignment, cwd=str(self.project), environment=self.environment, mcp=mcp)
        return Launch(
            argv=call.argv, cwd=str(self.project), starter_env=self.environment, env=call.environment, stdin=call.stdin
        )

    def register(self, command: Sequence[str]) -> None:
        """Make a server known as a person does it: once, in gemini's own settings, without any variables."""
        server = {"command": command[0], "args": command[1:], "trust": True}
        self.gemini_settings.write_text(json.dumps({**self.settings, "mcpServers": {"sidecar": server}}))

    def processes(self) -> list[str]:
        """The command lines of what runs with this test's mark in its arguments or environment; ours does not."""
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                is_ours = any(self.token in text for text in (*words, *process.environ().values()))
                if is_ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(words))
            except psutil.Error:  # it ended while we looked, or belongs to somebody else
                continue
        return found


def installed(name: str) -> str | None:
    """The tool on PATH, else below the npm prefix that the tests were given."""
    prefix = os.environ.get("SIDECAR_TEST_NPM_PREFIX", "")
    places = [os.environ.get("PATH", ""), os.path.join(prefix, "node_modules", ".bin"), os.path.join(prefix, "bin")]
    return shutil.which(name, path=os.pathsep.join(places if prefix else places[:1]))


@pytest.fixture(params=["claude", "codex", "gemini"])
def tool(request: pytest.FixtureRequest, tmp_path: Path, model: Model) -> Tool:
    name: AdapterName = request.param
    if not request.config.getoption("--real-agents", default=False):
        pytest.skip("needs --real-agents")
    program = installed(name)
    if program is None:
        package = ADAPTERS[name].package
        pytest.skip(f"no {name}: npm install --prefix DIR {package}, then SIDECAR_TEST_NPM_PREFIX=DIR")
    return Tool(name, program, tmp_path, model)


async def listen(agent: Agent, parser: Parser, until: type[Event] | None = None) -> list[Event]:
    """Read what the agent says, up to an event or to the end."""
    events: list[Event] = []
    async for output in agent.pipes.subscribe():
        for line in output.lines:
            events += parser.feed(line, output.stream)
        if until is not None and any(isinstance(event, until) for event in events):
            break
    return events


async def poll(condition: Any) -> None:
    """Wait until a condition holds; the caller has the deadline."""
    while not condition():  # noqa: ASYNC110 - another process brings it about: there is no event to wait for
        await anyio.sleep(0.02)


@pytest.mark.anyio
@pytest.mark.parametrize("via", ["stdin", "argument"])
async def test_a_tool_answers_and_leaves_nothing(tool: Tool, via: Literal["stdin", "argument"]) -> None:
    parser = tool.adapter.parser(time.time)
    with anyio.fail_after(DEADLINE_S):
        async with Supervisor(str(tool.project)) as supervisor:
            agent = await supervisor.start(tool.launch(via=via))
            await listen(agent, parser)
            ended = await agent.wait()
    summary = parser.summary()
    assert (ended.exit_code, ended.reason, ended.survivors) == (0, "exited", 0), ended.tail
    assert (summary.text, summary.finished, summary.error) == (ANSWER, True, None)
    assert summary.session_id
    assert summary.tokens.total > 0
    assert tool.processes() == []


@pytest.mark.anyio
async def test_a_tool_whose_model_hangs_is_ended_and_leaves_nothing(tool: Tool) -> None:
    tool.model.script = Script(hangs=True)
    parser = tool.adapter.parser(time.time)
    with anyio.fail_after(DEADLINE_S):
        async with Supervisor(str(tool.project)) as supervisor:
            agent = await supervisor.start(tool.launch(via="stdin"))
            await listen(agent, parser, until=SessionStarted)
            await poll(tool.model.asked.is_set)
            ended = await agent.end("abort")
    assert (ended.reason, ended.survivors) == ("abort", 0)
    assert not parser.summary().finished
    assert tool.processes() == []


@pytest.mark.anyio
@pytest.mark.parametrize("containment", ["cgroup", "reaper", "sweep"])
async def test_a_tool_ended_during_a_tool_call_takes_the_call_along(tool: Tool, containment: Setting) -> None:
    try:
        choose(containment)
    except ConfigError as error:
        pytest.skip(str(error))
    sleep = f"sleep 3600; : {tool.token}-call"
    calls = {
        "claude": Script(tool="Bash", arguments={"command": sleep}),
        "codex": Script(tool="exec_command", arguments={"cmd": sleep}),
        "gemini": Script(tool="run_shell_command", arguments={"command": sleep, "description": "wait"}),
    }
    tool.model.script = calls[tool.name]
    parser = tool.adapter.parser(time.time)
    with anyio.fail_after(DEADLINE_S):
        async with Supervisor(str(tool.project), containment=containment) as supervisor:
            agent = await supervisor.start(tool.launch(via="stdin", permit=True))
            await listen(agent, parser, until=ToolBegan)
            await poll(lambda: any(words.startswith("sleep ") for words in tool.processes()))
            ended = await agent.end("abort")
    assert (ended.reason, ended.survivors) == ("abort", 0)
    assert tool.processes() == []


SERVER = """
import json, os, sys, time
for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    reply = {"error": {"code": -32601, "message": "no such method"}}
    if call["method"] == "initialize":
        time.sleep(float(os.environ.get("SIDECAR_TEST_STARTS_IN", "0")))
        version = call["params"]["protocolVersion"]
        server = {"name": "s", "version": "1"}
        reply = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}}
    elif call["method"] == "tools/list":
        schema = {"type": "object", "properties": {"reason": {"type": "string"}}}
        reply = {"result": {"tools": [{"name": "abort", "description": "Ends the run.", "inputSchema": schema}]}}
    elif call["method"] == "tools/call":
        with open(sys.argv[1], "w") as file:
            file.write(os.environ["SIDECAR_TEST_RUN"])
        reply = {"result": {"content": [{"type": "text", "text": "done"}]}}
    print(json.dumps({"jsonrpc": "2.0", "id": call["id"], **reply}), flush=True)
"""


@pytest.mark.anyio
async def test_a_tool_can_call_the_server_that_leads_back_to_the_run(tool: Tool, tmp_path: Path) -> None:
    await _check_call(tool, tmp_path)


@pytest.mark.anyio
@pytest.mark.parametrize("tool", ["codex"], indirect=True)
async def test_codex_waits_for_a_server_that_is_slow_to_start(tool: Tool, tmp_path: Path) -> None:
    """It gives others about a second, and then does its work without them. Without a daemon, ours takes that long."""
    await _check_call(tool, tmp_path, SIDECAR_TEST_STARTS_IN="5")


async def _check_call(tool: Tool, tmp_path: Path, **variables: str) -> None:
    """The model wants the tool `abort` called, and it is."""
    called = tmp_path / 'called it\'s "here"'
    mcp: McpConfiguration = {
        "command": [sys.executable, "-c", SERVER, str(called)],
        "env": {"SIDECAR_TEST_RUN": "01J", "PATH": os.environ["PATH"], **variables},
    }
    calls = {
        "claude": Script(tool="mcp__sidecar__abort", arguments={"reason": "enough"}),
        "codex": Script(tool="abort", namespace="mcp__sidecar", arguments={"reason": "enough"}),
        "gemini": Script(tool="mcp_sidecar_abort", arguments={"reason": "enough"}),
    }
    if tool.adapter.mcp_by_hand:
        tool.register(mcp["command"])
    tool.model.script = calls[tool.name]
    parser = tool.adapter.parser(time.time)
    with anyio.fail_after(DEADLINE_S):
        async with Supervisor(str(tool.project)) as supervisor:
            agent = await supervisor.start(tool.launch(via="stdin", mcp=mcp))
            await listen(agent, parser)
            ended = await agent.wait()
    assert called.read_text() == "01J", ended.tail
    assert (parser.summary().denied, parser.summary().text) == ((), ANSWER)
    assert tool.processes() == []
