"""Checks that measure whether a model and an engine are fit for exact rollouts, and say what to do."""
