"""Seconds, bytes and communication of a running step."""
