"""Which block each op belongs to."""
