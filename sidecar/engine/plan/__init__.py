"""What a workflow would do with these inputs, told without doing any of it."""
