"""What can be found out about a workflow without running it."""
