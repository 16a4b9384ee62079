"""An engine that plays a script, in this process or behind vLLM's HTTP: for tests, demos and users."""
