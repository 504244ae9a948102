"""An MCP server made with the SDK: `stdio`, or `http PORT`, or `http-handshake PORT`, which hides the newer era."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

server = MCPServer("cheese")


@server.tool(description="Structured.")
def count(kinds: list[str], context: Context) -> dict[str, Any]:
    return {"kinds": len(kinds), "era": context.protocol_version, "token": (context.headers or {}).get("x-token")}


@server.tool(description="Two blocks of text.", structured_output=False)
def two_texts() -> list[str]:
    return ["first", "second"]


@server.tool(description="Text and an image.", structured_output=False)
def picture() -> list[Any]:
    return ["see:", Image(data=b"GIF", format="gif")]


@server.tool(description="Fails.")
def refuse() -> str:
    raise ToolError("there is no cheese")


def note(text: str) -> None:
    Path(os.environ["NOTES"]).write_text(f"{text}\n")


class HandshakeOnly:
    """Answers the newer era's first question as a server does that has never heard of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "DELETE":
            note("session deleted")
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if json.loads(body).get("method") == "server/discover":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"no such method"})
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, again, send)


def main(how: str, port: int = 0) -> None:
    if how == "stdio":
        server.run("stdio")
        return
    with socket.create_server(("127.0.0.1", port)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        app: ASGIApp = server.streamable_http_app()
        if how == "http-handshake":
            app = HandshakeOnly(app)
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listener])


main(sys.argv[1], *map(int, sys.argv[2:]))
