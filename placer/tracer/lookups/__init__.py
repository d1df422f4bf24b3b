"""What models look up in the values of tensors while they are exported, which has none."""
