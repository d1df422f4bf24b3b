"""Family 9: models that a second stranger wrote, and what sets the odd ones among them apart."""
