"""Seconds of messages and collectives between devices."""
