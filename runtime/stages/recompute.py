"""What a block keeps until its backward: its inputs, from which it runs again there.

`run(again)` computes the block, the second time with `again`. Both ways give the gradients of a plain run.

    runs_again   torch's checkpoint: once for every backward that reaches the block, each giving up what it made
    runs_once    once for all of them: what it made is kept until the graph is gone. For a backward in two parts, whose
                 second part is many calls of autograd (`split_backward`), and needs most of what the first one did
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeAlias, cast

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Tensors: TypeAlias = tuple[torch.Tensor, ...]
Run: TypeAlias = Callable[..., Tensors]


def runs_again(run: Run, *given: torch.Tensor) -> Tensors:
    """`run(*given)` by torch's checkpoint."""
    # Nothing a block does reads the global random state: dropout is keyed.
    return cast(Tensors, checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False))


def runs_once(run: Run, *given: torch.Tensor) -> Tensors:
    """`run(*given)`, whose saved tensors are made by one more run when the first of them is wanted."""
    casts = {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    places, remade = 0, list[torch.Tensor]()

    def place(_: torch.Tensor) -> int:
        nonlocal places
        places += 1
        return places - 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        remade.append(tensor.detach())
        return remade[-1]

    def made(index: int) -> torch.Tensor:
        if not remade:
            with torch.enable_grad(), ExitStack() as casting, saved_tensors_hooks(keep, lambda tensor: tensor):
                for kind, dtype in casts.items():
                    casting.enter_context(torch.autocast(kind, dtype))
                run(*given)
            if len(remade) != places:
                raise RuntimeError(f"a block that ran again saved {len(remade)} tensors where it saved {places}")
        return remade[index]

    with saved_tensors_hooks(place, made):
        return run(*given)
