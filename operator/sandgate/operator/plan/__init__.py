"""What should run: pure plans, the same for every driver."""
