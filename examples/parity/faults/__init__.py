"""Faults planted into the runtime one by one, and whether `verify` finds them: `python -m examples.parity.faults`."""
