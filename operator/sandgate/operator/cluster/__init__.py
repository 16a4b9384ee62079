"""Jobs on Kubernetes: carries out a plan's actions as calls of the API server and of gateways."""
