"""The use cases, composed from the packages below: what the command line and MCP call."""
