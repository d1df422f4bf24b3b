"""A model and a batch without memory.

shaped(model)   every parameter and buffer one number seen as a whole tensor: enough to capture it
bare(model)     every one on the meta device: enough to cut it and to share it out
faked(stage)    every one a fake tensor: it has a shape, a type and a place; ops on it give such tensors, and no bytes
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from placer.plans.plan import Plan
from placer.runtime.stages.captured_model import input_dtypes
from placer.runtime.stages.microbatch import Batch
from placer.runtime.stages.stage import StageModule


def shaped(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` with tensors that hold one number each."""
    return _replaced(model, lambda tensor: torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape))


def bare(model: nn.Module) -> nn.Module:
    """`model` with tensors on the meta device."""
    return _replaced(model, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


def faked(stage: StageModule, mode: FakeTensorMode, device: torch.device) -> None:
    """Give `stage` fake tensors of `mode` for those on the meta device; FSDP2's shards too, which it takes up then.

    FSDP2 cuts a parameter into as many views as there are ranks: on the meta device at once, on fake tensors in time.
    """
    with mode:
        stage._apply(lambda tensor: torch.empty_like(tensor, device=device))  # type: ignore[no-untyped-call]


def fake_batch(plan: Plan, device: torch.device) -> Batch:
    """A global batch; fake where called under a fake mode."""
    dtypes = input_dtypes(plan)
    return {
        entry.name: torch.empty(entry.tensor.shape_at(plan.rows), dtype=dtypes[entry.name], device=device)
        for entry in plan.graph.inputs
    }


def _replaced(model: nn.Module, make: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    """Each tensor replaced once, so that tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    kept: list[torch.Tensor] = []  # so that no address is used twice

    def new(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            kept.append(tensor)
            found = make(tensor)
            parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(found, requires_grad=tensor.requires_grad) if parameter else found
        return made[id(tensor)]

    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, tensor in list(owned.items()):
                if tensor is not None:
                    owned[name] = new(tensor)  # type: ignore[assignment]  # parameters stay parameters
    return model
