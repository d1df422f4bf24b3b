"""The way of training data from a disk to a device as a flow network: what it sustains, what binds, what would help."""
