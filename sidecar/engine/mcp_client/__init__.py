"""The sidecar as a client of other MCP servers: what `mcp_call` is made of."""
