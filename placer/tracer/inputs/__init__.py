"""What capture is given: models and batches."""
