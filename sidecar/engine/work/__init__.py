"""What a step does in the world, and what is made of the answer: commands, agents, output."""
