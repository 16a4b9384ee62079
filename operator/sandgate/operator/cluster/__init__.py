"""Jobs on Kubernetes: what interprets the plan's actions as objects of an API server and calls of gateways."""
