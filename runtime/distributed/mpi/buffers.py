"""Tensors as MPI takes them: memory of the host, without gaps; and its reductions.

MPI knows no type of 16 bits for floating numbers: they are handed over as whole numbers, with reductions of our own,
which torch computes on the pieces that MPI gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from mpi4py import MPI
from torch import distributed as dist

from placer.runtime.distributed.tensors import SIXTEEN_BITS

_OPS = {
    dist.ReduceOp.SUM: (MPI.SUM, torch.add),
    dist.ReduceOp.PRODUCT: (MPI.PROD, torch.mul),
    dist.ReduceOp.MAX: (MPI.MAX, torch.maximum),
    dist.ReduceOp.MIN: (MPI.MIN, torch.minimum),
}  # fmt: skip


def numbers(tensor: torch.Tensor) -> object:
    """The memory of a contiguous tensor, as numbers that MPI can reduce: those of 16 bits as whole ones."""
    _require_host(tensor)
    if tensor.dtype in SIXTEEN_BITS:
        return tensor.detach().view(torch.int16).numpy()
    return tensor.detach().numpy()


def octets(tensor: torch.Tensor) -> object:
    """The memory of a contiguous tensor, as bytes, which can be moved whatever they mean."""
    _require_host(tensor)
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def reduction(op: dist.ReduceOp | dist.ReduceOp.RedOpType, dtype: torch.dtype) -> MPI.Op:
    """MPI's reduction that is torch's `op` on `dtype`. Raises ValueError where there is none."""
    found = next((both for kind, both in _OPS.items() if op == kind), None)
    if found is None:
        raise ValueError(f"MPI has no reduction {op}; it sums, multiplies, and takes the largest and the smallest")
    return _of_sixteen(found[1], dtype) if dtype in SIXTEEN_BITS else found[0]


@cache
def _of_sixteen(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> MPI.Op:
    return MPI.Op.Create(partial(_reduced, function, dtype), commute=True)


def _reduced(
    function: Callable[..., torch.Tensor], dtype: torch.dtype, one: MPI.buffer, into: MPI.buffer, _: MPI.Datatype
) -> None:
    own = torch.frombuffer(into, dtype=dtype)
    function(torch.frombuffer(one, dtype=dtype), own, out=own)


def _require_host(tensor: torch.Tensor) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"MPI was given a tensor on {tensor.device}; here it moves what lies on the host alone")
