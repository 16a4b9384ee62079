"""HTTP endpoints: agents' calls (ASGI), the control API (FastAPI), limits on bodies, headers and connections."""
