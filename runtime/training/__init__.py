"""The whole loop under torchrun: data, steps, logs, report."""
