"""From a model to a plain graph for any number of rows, repeated layers once."""
