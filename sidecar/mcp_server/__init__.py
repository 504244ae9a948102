"""The MCP server: the use cases as tools, prompts and resources, in both eras of the protocol, on any transport."""
