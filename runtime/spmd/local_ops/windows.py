"""Sliding windows over a rank's rows, which hold what the window reads of its neighbours."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from placer.runtime.spmd.collectives import spread
from placer.runtime.spmd.local_ops.calls import Function, Given


def window(given: Given) -> torch.Tensor:
    """A convolution or pooling, with the padding it reads beyond the edge of the whole put there."""
    fill = float("-inf") if "max_pool" in given.local.call.target else 0.0
    x, dim = given.tensor(0), given.place("dim")
    padded = functional.pad(x, _sides(x, dim, given.place("before"), given.place("behind")), value=fill)
    given = given.replaced(0, "input", padded)
    if given.option(4, "padding", 0) == "same":
        return _padded_elsewhere(given, dim)
    return replace(given, function=_counted(given.function)).called()


def _counted(function: Function) -> Function:
    """The overload of a convolution that takes its padding as numbers, where this one takes its name."""
    named = isinstance(function, torch._ops.OpOverload) and function._overloadname == "padding"
    return function.overloadpacket.default if named else function  # type: ignore[attr-defined]


def _padded_elsewhere(given: Given, dim: int) -> torch.Tensor:
    """Padding "same" written out on the other dims, and "valid" instead."""
    x, kernel = given.tensor(0), given.tensor(1).shape[2:]
    told = given.option(5, "dilation", 1)
    listed = [one for one in told if isinstance(one, int)] if isinstance(told, list | tuple) else [1]
    listed = [told] if isinstance(told, int) else listed
    for at, size in enumerate(kernel, start=x.dim() - len(kernel)):
        reach = listed[(at - x.dim()) % len(listed)] * (size - 1)
        if at != dim:
            x = functional.pad(x, _sides(x, at, reach // 2, reach - reach // 2))
    return given.replaced(0, "input", x).replaced(4, "padding", "valid").called()


def transposed_window(given: Given) -> torch.Tensor:
    """A transposed convolution of the rank's rows, cropped or filled up to the rank's piece of the result."""
    bias, dim = given.optional(2, "bias"), given.place("dim")
    made = given.called() if bias is None else given.replaced(2, "bias", None).called()
    first, length = given.place("first"), given.place("length")
    placed = functional.pad(made, _sides(made, dim, -first, length - made.shape[dim] + first))
    return placed if bias is None else placed + bias.view([-1] + [1] * (given.tensor(1).dim() - 2))


def batch_norm(given: Given) -> torch.Tensor:
    """Batch norm in training, its statistics over all ranks (biased for the result, unbiased for the running ones).

    It reckons in float32 at least, as torch's does, and makes what has the type that it gets.
    """
    came, weight, bias = given.tensor(0), given.optional(1, "weight"), given.optional(2, "bias")
    x = came.to(torch.promote_types(came.dtype, torch.float32))
    dims = [dim for dim in range(x.dim()) if dim != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    count = given.place("count")
    mean = spread(x.sum(dims), given.axis) / count
    centred = x - mean.view(shape)
    variance = spread(centred.square().sum(dims), given.axis) / count
    _note(given, mean.detach(), variance.detach() * count / max(1, count - 1))
    made = centred * torch.rsqrt(variance + given.number(7, "eps", 1e-5)).view(shape)
    made = made if weight is None else made * weight.view(shape)
    return (made if bias is None else made + bias.view(shape)).to(came.dtype)


def _note(given: Given, mean: torch.Tensor, variance: torch.Tensor) -> None:
    momentum = given.number(6, "momentum", 0.1)
    for position, name, value in ((3, "running_mean", mean), (4, "running_var", variance)):
        running = given.optional(position, name)
        if running is not None:
            # As torch's does: not counted as a write, for which the backward of another norm would refuse to run that
            # keeps the same statistics, and in training does not read them.
            running.data.lerp_(value.to(running.dtype), momentum)


def _sides(x: torch.Tensor, dim: int, before: int, behind: int) -> list[int]:
    """What `pad` wants to hear about padding one dim."""
    return [0] * (2 * (x.dim() - 1 - dim)) + [before, behind]
