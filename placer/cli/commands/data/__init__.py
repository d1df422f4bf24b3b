"""`placer data`: the way of training data to the devices."""
