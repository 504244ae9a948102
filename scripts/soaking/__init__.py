"""The soak: a storm on one project, and the auditor who says whether every promise held."""
