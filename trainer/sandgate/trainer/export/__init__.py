"""Trajectories in other people's forms: Arrow, Parquet, JSON lines."""
