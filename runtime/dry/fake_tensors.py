"""A model and a batch without memory.

shaped(model)   every parameter and buffer one number seen as a whole tensor: enough to capture it
bare(model)     every one on the meta device: enough to cut it and to share it out
faked(stage)    every one a fake tensor: it has a shape, a type and a place; ops on it give such tensors, and no bytes
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from placer.plans.plan import Plan
from placer.runtime.stages.batch_values import Batch
from placer.runtime.stages.captured_model import input_dtypes
from placer.runtime.stages.stage import StageModule
from placer.runtime.weights.meta_model import one_number, replaced_tensors


def shaped(model: nn.Module, device: torch.device) -> nn.Module:
    """`model` with tensors that hold one number each."""
    return replaced_tensors(model, partial(one_number, device=device))


def bare(model: nn.Module) -> nn.Module:
    """`model` with tensors on the meta device."""
    return replaced_tensors(model, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"))


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
