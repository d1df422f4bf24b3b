"""Products that keep their results where the rest of their block runs again (recompute `selective`).

A block's code calls `Keeping(product)` for those that `placer.costs.kept_results` names. As the block first runs
under `kept_contexts`, what their kernels make is kept; as it runs again it is taken from there, in the same order:
autograd goes through the product all the same, and saves what it saved, while the kernel rests.

Torch's own selective checkpoint watches every op of a block, in Python, and forbids those that a second run does
otherwise (the copies of running statistics); this one watches products only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

#: What is entered as a block first runs, and as it runs again.
Contexts: TypeAlias = tuple[AbstractContextManager[None], AbstractContextManager[None]]

# Torch's own ops of a product's kernels: casts, copies, views and collectives beside them are made again. Ops of any
# other library are products themselves.
_TORCH = ("aten", "prims", "prim", "c10d", "_c10d_functional", "profiler")
_NAMES = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm",
    "convolution", "mkldnn_convolution", "cudnn_convolution", "miopen_convolution", "linear",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip
_PACKETS = [getattr(torch.ops.aten, name) for name in _NAMES if hasattr(torch.ops.aten, name)]
KERNELS = frozenset(getattr(packet, overload) for packet in _PACKETS for overload in packet.overloads())


class _Kept:
    """What the products of one run of a block made, first to last."""

    def __init__(self) -> None:
        self.results: deque[tuple[object, tuple[int, ...]]] = deque()


class _Now(local):
    """How products are computed at the moment; backward may run in threads of its own."""

    mode: TorchDispatchMode | None = None


_NOW = _Now()


@dataclass(frozen=True)
class Keeping:
    """A product whose result is kept under `kept_contexts`. A graph prints what it calls by its name: each has one."""

    product: Callable[..., object]

    def __post_init__(self) -> None:
        object.__setattr__(self, "__name__", f"keeping_{getattr(self.product, '__name__', 'product')}")

    def __call__(self, *args: object, **kwargs: object) -> object:
        """What the product makes."""
        if _NOW.mode is None:
            return self.product(*args, **kwargs)
        with _NOW.mode:
            return self.product(*args, **kwargs)


def kept_contexts() -> Contexts:
    """Contexts of one run of a block and of its second one."""
    kept = _Kept()
    return _computing_by(_Keep(kept)), _computing_by(_Take(kept))


def keep_result(made: fx.Node) -> None:
    """Have a node of a block's graph keep its result."""
    if not callable(made.target):
        raise TypeError(f"{made.name} calls {made.target}, which is no function whose result could be kept")
    made.target = Keeping(made.target)


@contextmanager
def _computing_by(mode: TorchDispatchMode) -> Iterator[None]:
    before, _NOW.mode = _NOW.mode, mode
    try:
        yield
    finally:
        _NOW.mode = before


class _Keep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, kept: _Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        if _is_kernel(op):
            # Autograd makes the very tensor part of its graph: without it what is kept would hold all of that.
            alone = tree_map_only(torch.Tensor, _detached, made)
            self._kept.results.append((alone, _versions(alone)))
        return made


class _Take(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, kept: _Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = kept

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _is_kernel(op):
            return op(*args, **(kwargs or {}))
        made, versions = self._kept.results.popleft()
        if _versions(made) != versions:
            raise RuntimeError(f"the result of {op} was written in place after it was kept for the second run")
        return made


def _is_kernel(op: torch._ops.OpOverload) -> bool:
    return op in KERNELS or op.namespace not in _TORCH


def _detached(made: torch.Tensor) -> torch.Tensor:
    # Below autograd nothing is known to be a view; so it is, and writes to the one count for the other.
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return made.detach()


def _versions(made: object) -> tuple[int, ...]:
    every = made if isinstance(made, Sequence) else (made,)
    return tuple(one._version for one in every if isinstance(one, torch.Tensor))
