"""What the cursor is made of: frames it stands in, moves it makes, actions it asks for."""
