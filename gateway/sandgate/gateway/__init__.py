"""The gateway: the LLM endpoint of agents, which keeps every sampled token and leases trajectories to trainers."""
