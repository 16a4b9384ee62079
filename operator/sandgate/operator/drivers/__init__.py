"""Interpreters of plans."""
