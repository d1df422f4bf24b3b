"""How operators may be cut, a file for each family."""
