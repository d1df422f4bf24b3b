"""What may be chosen: everything but where to cut and what to recompute."""
