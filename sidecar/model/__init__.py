"""What things are: ids, runs, workflows."""
