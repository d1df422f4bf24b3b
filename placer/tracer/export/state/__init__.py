"""What a model keeps beside its parameters, from one forward to the next, and what is refused of it."""
