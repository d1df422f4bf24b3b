"""The finish time of one sample."""
