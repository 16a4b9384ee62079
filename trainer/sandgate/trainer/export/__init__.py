"""Exports trajectories in the forms of others: Arrow, Parquet, JSON lines."""
