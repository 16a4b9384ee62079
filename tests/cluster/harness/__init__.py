"""A real Kubernetes of one's own, without Docker and without a registry (docs/testing.md)."""
