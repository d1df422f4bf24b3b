"""What an operator computes: products and FLOPs forward and backward, a file for each family."""
