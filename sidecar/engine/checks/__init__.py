"""One file for each kind of mistake that a workflow can have besides its structure."""
