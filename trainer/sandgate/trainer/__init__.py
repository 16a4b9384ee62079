"""What is learned from it: the user's side, from submitting jobs to exporting trajectories."""
