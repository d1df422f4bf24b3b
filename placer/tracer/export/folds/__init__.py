"""Whether alike layers may be exported once: what is seen of that in the graph, and in a run of the whole model."""
