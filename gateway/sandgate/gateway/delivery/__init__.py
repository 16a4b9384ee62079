"""Trajectories leave the gateway: Arrow streams for trainers, Parquet files in a folder or bucket."""
