"""A range of blocks as a module, and what one microbatch brings it."""
