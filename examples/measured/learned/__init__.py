"""What the learned policies have learned, beside rivals that look at as many plans or orders: see `__main__`."""
