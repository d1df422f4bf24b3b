"""Stages with replicas and layouts of their own."""
