"""One rank of a world that is not there: a process group whose collectives end at once and send nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from placer.errors import UsageError

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


def answered() -> AbstractContextManager[object]:
    """In the body numbers are read from fake tensors: 1, whatever they would be."""
    return _Answers()  # type: ignore[no-untyped-call]


class _Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """What the runtime reads as a number (the norm that clips) is 1."""

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """1 where a number is asked for; everything else as it is."""
        if func is aten._local_scalar_dense.default:
            asked = args[0]
            assert isinstance(asked, torch.Tensor)
            return 1.0 if asked.dtype.is_floating_point else 1
        return func(*args, **(kwargs or {}))
