"""What the agent sees: pods, network walls, local processes. Standard library only."""
