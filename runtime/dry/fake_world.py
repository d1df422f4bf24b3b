"""One rank of a world that is not there: a process group whose collectives end at once and send nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_map_only

from placer.errors import UsageError
from placer.runtime.observer import OpWatch

aten = torch.ops.aten


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    """This process is `rank` of `size` in the body. Raises UsageError where it belongs to a real world already."""
    if dist.is_initialized():
        raise UsageError("this process has joined a process group; a dry run needs none, start it without torchrun")
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class Answers(OpWatch):  # type: ignore[no-untyped-call]  # torch does not type it
    """What the runtime reads as a number from fake tensors (the norm that clips) is 1, whatever it would be.

    Attention takes the kernel that real tensors would take: for fake ones torch would take the one that keeps all
    scores.
    """

    def op(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """1 where a number is asked for, the kernel where that is asked for; everything else as it is."""
        if func is aten._local_scalar_dense.default:
            asked = args[0]
            assert isinstance(asked, torch.Tensor)
            return 1.0 if asked.dtype.is_floating_point else 1
        if func is aten._fused_sdp_choice.default:
            return _kernel(func, args, kwargs)
        return func(*args, **kwargs)


def _kernel(func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The choice for small real tensors: it depends on which sizes are equal, on types and on strides of 1."""
    sizes: dict[int, int] = {0: 0, 1: 1}

    def like(tensor: torch.Tensor) -> torch.Tensor:
        shape = [sizes.setdefault(int(size), len(sizes)) for size in tensor.shape]
        made = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        if made.dim() > 1 and tensor.stride(-1) != 1:
            made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
        return made.requires_grad_(tensor.requires_grad)

    with unset_fake_temporarily():
        given, named = tree_map_only(torch.Tensor, like, (args, kwargs))
        return func(*given, **named)
