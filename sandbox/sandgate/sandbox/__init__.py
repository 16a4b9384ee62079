"""Sandboxes of agents and verifiers: pods, network checks, local processes. Standard library only."""
