"""Tensor parallel as a person writes it: Megatron's column and row products as autograd functions around all-reduces,
and the same cut by DTensor's parallelize_module.

    copied    as it is forward, gradients summed     (before columns)
    summed    summed forward, gradients as they are  (behind rows)
"""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn
from torch.autograd.function import FunctionCtx
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

from placer.runtime.bench.model import Decoder, Layer, Size, loss
from placer.runtime.bench.plans import COLUMNS, RANKS, ROWS
from placer.runtime.bench.torch_baselines import Batch, adamw, clip
from placer.runtime.distributed.tensors import local_part


class Written:
    """Megatron's way by hand."""

    def __init__(self, model: Decoder, size: Size) -> None:
        rank = dist.get_rank()
        self._model = model
        self._start = rank * (size.words // RANKS)
        for layer in model.layers:
            assert isinstance(layer, Layer)
            layer.heads //= RANKS
            layer.before, layer.behind = copied, summed
            for name in (*COLUMNS, *ROWS):
                if hasattr(layer, name):
                    _keep(getattr(layer, name), rank, 0 if name in COLUMNS else 1)
        _keep(model.head, rank, 0)
        self._shared = frozenset(
            id(parameter)
            for name, parameter in model.named_parameters()
            if "norm" in name or name.startswith(("t", "p"))
        )
        self._parameters = list(model.parameters())
        self._optimizer = adamw(self._parameters)

    def step(self, batch: Batch) -> float:
        """The loss."""
        self._optimizer.zero_grad()
        x = self._model.embedded(batch["tokens"])
        for layer in self._model.layers:
            x = layer(x)
        scores = self._model.head(copied(self._model.norm(x))).flatten(0, 1)
        found = _CrossEntropy.apply(scores, batch["labels"].flatten(), self._start)  # type: ignore[no-untyped-call]
        found.backward()
        clip(self._parameters, self._shared)
        self._optimizer.step()
        return float(found.detach())


class Distributed:
    """The same cut by parallelize_module, whose tensors are DTensors."""

    def __init__(self, model: Decoder, size: Size) -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in model.layers:
            assert isinstance(layer, Layer)
            layer.heads //= RANKS
            columns = {name: ColwiseParallel() for name in COLUMNS if hasattr(layer, name)}
            parallelize_module(layer, mesh, {**columns, **{name: RowwiseParallel() for name in ROWS}})
        parallelize_module(model, mesh, {"head": ColwiseParallel(use_local_output=False)})
        self._model, self._parameters = model, list(model.parameters())
        self._optimizer = adamw(self._parameters)
        self._mesh = mesh

    def step(self, batch: Batch) -> float:
        """The loss."""
        self._optimizer.zero_grad()
        scores = self._model.scored(self._model.embedded(batch["tokens"]))
        labels = DTensor.from_local(batch["labels"], self._mesh, [Replicate()])
        with loss_parallel():
            found = loss(scores, labels)
            torch.autograd.backward(found)
        _clip_pieces(self._parameters)
        self._optimizer.step()
        made = found.detach()
        return float(made.full_tensor() if isinstance(made, DTensor) else made)


def copied(x: torch.Tensor) -> torch.Tensor:
    """`x`, whose gradient is the sum of the ranks'."""
    made: torch.Tensor = _Copied.apply(x)  # type: ignore[no-untyped-call]
    return made


def summed(x: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' `x`."""
    made: torch.Tensor = _Summed.apply(x)  # type: ignore[no-untyped-call]
    return made


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        made = x.clone()
        dist.all_reduce(made)
        return made

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class _Saved(FunctionCtx):
    saved_tensors: tuple[torch.Tensor, ...]


class _CrossEntropy(torch.autograd.Function):
    """The mean cross entropy of scores whose words lie on several ranks."""

    @staticmethod
    def forward(ctx: _Saved, scores: torch.Tensor, labels: torch.Tensor, start: int) -> torch.Tensor:
        largest = scores.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        shifted = scores - largest.unsqueeze(-1)
        mine = (labels >= start) & (labels < start + scores.shape[-1])
        local = torch.where(mine, labels - start, 0)
        wanted = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1) * mine
        exponents = shifted.exp()
        both = torch.stack([exponents.sum(-1), wanted])
        dist.all_reduce(both)
        ctx.save_for_backward(exponents / both[0].unsqueeze(-1), local, mine)
        return (both[0].log() - both[1]).mean()

    @staticmethod
    def backward(ctx: _Saved, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        shares, local, mine = ctx.saved_tensors
        made = shares.clone()
        made.scatter_add_(-1, local.unsqueeze(-1), -mine.to(made.dtype).unsqueeze(-1))
        return made * (gradients[0] / made.shape[0]), None, None


def _keep(linear: nn.Linear, rank: int, dim: int) -> None:
    """Only this rank's columns (dim 0 of the weight) or rows (dim 1)."""
    linear.weight = nn.Parameter(linear.weight.detach().chunk(RANKS, dim)[rank].clone())


def _clip_pieces(parameters: list[nn.Parameter]) -> None:
    """`clip` of DTensors and plain tensors by what each rank has: torch's own clipping refuses them together."""
    local = []
    for parameter in parameters:
        grad = parameter.grad
        one = nn.Parameter(local_part(parameter.detach()))
        one.grad = None if grad is None else local_part(grad)
        local.append((one, not isinstance(parameter, DTensor)))
    clip([one for one, _ in local], frozenset(id(one) for one, everywhere in local if everywhere))
