"""What a definition comes to: whether it can work, what it looks like, and how it is executed."""
