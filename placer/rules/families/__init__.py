"""What operators compute and how they may be cut: FLOPs and splits, a file for each family."""
