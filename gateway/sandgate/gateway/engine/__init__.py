"""Inference servers: requests to vLLM, its answers, replicas and their health, weight updates, a scripted engine."""
