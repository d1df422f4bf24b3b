"""Tensors of a model that a run can cut, load and save: those that lie in memory number by number."""

from __future__ import annotations

import torch
from torch import nn

from placer.errors import UncapturableError


def require_dense(model: nn.Module) -> None:
    """Raise UncapturableError for a sparse or nested tensor among the parameters, buffers and plain attributes."""
    for path, module in model.named_modules():
        held = {**module._parameters, **module._buffers, **vars(module)}
        for name, tensor in held.items():
            if isinstance(tensor, torch.Tensor) and (tensor.layout is not torch.strided or tensor.is_nested):
                kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
                raise UncapturableError(
                    f"the model's tensor {f'{path}.{name}' if path else name} is {kind}, which a run cannot keep; keep "
                    "what it is made of (indices and values) in parameters and buffers, and make it in the forward of "
                    "a submodule (torch.sparse_coo_tensor), which placer can run as it is"
                )
