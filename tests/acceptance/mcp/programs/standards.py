"""An MCP server with the two checks that seed 004 calls: each counts the errors of the files that it is given."""

from __future__ import annotations

import json
import sys
from typing import Any

ERRORS = {"check_typescript": {"src/a.ts": 0, "src/b.ts": 2}, "lint_project": {"src/a.ts": 0, "src/b.ts": 3}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"serverInfo": {"name": "standards", "version": "1"}, "capabilities": {"tools": {}}}
        return {"result": {"protocolVersion": "2025-06-18", **about}}
    if method == "tools/list":
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ERRORS]}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "Method not found"}}
    given = params["arguments"]
    files = given["files"] if params["name"] == "check_typescript" else [given["target_files"]]
    errors = sum(ERRORS[params["name"]][file] for file in files)
    return {"result": {"content": [{"type": "text", "text": json.dumps({"errors": errors})}]}}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        told = answer(asked["method"], asked.get("params") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}) + "\n")
        sys.stdout.flush()
