"""An MCP server with one tool, which fails where it is told to."""

from __future__ import annotations

import json
import sys
from typing import Any

for line in sys.stdin:
    message = json.loads(line)
    result: dict[str, Any] = {}
    if message["method"] == "initialize":
        about = {"name": "tools", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": "echo", "description": "Echo.", "inputSchema": {"type": "object"}}]}
    elif message["method"] == "tools/call":
        arguments = message["params"]["arguments"]
        result = {"content": [{"type": "text", "text": json.dumps(arguments)}], "isError": bool(arguments.get("fail"))}
    if "id" in message:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()
