"""What summing gradients in 16 bits is, in words: it changes the mathematics, and whatever shows a plan says so."""

from __future__ import annotations

CHANGES = "changes the mathematics: gradients, and with them weights and losses, are not those of one device"


def compression_text(dtype: str) -> str:
    """A sentence about gradients that replicas sum in `dtype`."""
    return f"gradients are cast to {dtype} while replicas sum them (gradient_compression), which {CHANGES}"
