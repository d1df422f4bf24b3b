"""Bytes of one device, by category and at once."""
