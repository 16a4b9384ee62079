"""What was said, token for token: agents' LLM endpoint, token truth, journal, leases."""
