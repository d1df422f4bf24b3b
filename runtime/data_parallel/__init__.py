"""Replicas: how their gradients and state are kept together."""
