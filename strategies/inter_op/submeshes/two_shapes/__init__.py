"""The same on many devices: pipelines of two shapes."""
