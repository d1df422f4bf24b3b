"""What a Hugging Face model asks for that a plan decides instead, as notes: recompute and precision."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def passed_over(model: nn.Module) -> Iterator[str]:
    """What the model asks for and does not get by that, each with what does it."""
    asking = [
        name for name, module in model.named_modules() if getattr(module, "gradient_checkpointing", False) is True
    ]
    if asking:
        yield (
            f"the model has gradient checkpointing switched on ({asking[0] or type(model).__name__}), which a plan "
            "does not follow: it says by itself which stages recompute (settings.recompute, --recompute full for all)"
        )
    config = getattr(model, "config", None)
    asked = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(asked, torch.dtype) and asked is not torch.float32:
        name = str(asked).removeprefix("torch.")
        yield (
            f"the model's configuration names {name}, which a plan does not follow: it computes in its own precision, "
            f"float32 unless given (settings.precision, --precision {name})"
        )
