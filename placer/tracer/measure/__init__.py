"""What each call of the graph is, in numbers: shapes, FLOPs, bytes, names of dims."""
