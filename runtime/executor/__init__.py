"""A plan on one rank: loaded, and its program carried out instruction by instruction."""
