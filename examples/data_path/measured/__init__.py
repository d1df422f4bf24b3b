"""Data paths of this machine with throttled storage: predicted beside measured samples/s, and what really binds."""
