"""What a block keeps until its backward: its inputs, from which it runs again there.

`run(again)` computes the block, the second time with `again`. All ways give the gradients of a plain run.

    runs_again      torch's checkpoint: once for every backward that reaches the block, each giving up what it made
    runs_together   the same where devices share the block: all of them run all of it again, when a gradient reaches it.
                    The others begin when the first saved tensor is wanted and checkpoint ends with the last, which may
                    be behind other exchanges on each device: they would wait for each other in two places
    runs_once       once for all of them: what it made is kept until the graph is gone. For a backward in two parts,
                    whose second part is many calls of autograd (`split_backward`), and needs most of what the first
                    did; `runs_once_together` where devices share the block

Each takes `contexts`, entered as the block first runs and as it runs again: of those where products keep their results
(`kept_results`) all but these runs again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeAlias, cast

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, noop_context_fn

from placer.runtime.stages.kept_results import Contexts

Tensors: TypeAlias = tuple[torch.Tensor, ...]
Run: TypeAlias = Callable[..., Tensors]
#: `rerun(run, *given)` computes a block and has it run again in backward.
Rerun: TypeAlias = Callable[..., Tensors]
MakeContexts: TypeAlias = Callable[[], Contexts]
PLAIN: MakeContexts = noop_context_fn


def runs_again(run: Run, *given: torch.Tensor, contexts: MakeContexts = PLAIN) -> Tensors:
    """`run(*given)` by torch's checkpoint."""
    # Nothing a block does reads the global random state: dropout is keyed.
    made = checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return cast(Tensors, made)


def runs_together(run: Run, *given: torch.Tensor, contexts: MakeContexts = PLAIN) -> Tensors:
    """`run(*given)` by torch's checkpoint, from beginning to end before anything else of its backward."""

    def whole(begun: Run) -> Tensors:
        made = checkpoint(
            begun, *given, use_reentrant=False, preserve_rng_state=False, early_stop=False, context_fn=contexts
        )
        return cast(Tensors, made)

    return _at_first_gradient(whole, run)


def runs_once_together(run: Run, *given: torch.Tensor, contexts: MakeContexts = PLAIN) -> Tensors:
    """`run(*given)`, whose saved tensors are made by one more run when a gradient reaches it."""
    return _at_first_gradient(lambda begun: runs_once(begun, *given, contexts=contexts), run)


def _at_first_gradient(kept: Callable[[Run], Tensors], run: Run) -> Tensors:
    """`kept(run)`, which runs again as soon as a gradient reaches anything it made."""
    starts: list[FunctionCtx] = []
    first = iter((starts,))  # what is kept beyond this call is the graph's alone: nothing holds a graph that holds it

    def begun(*given: torch.Tensor) -> Tensors:
        start = _Start.apply(torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        next(first, []).append(start.grad_fn)
        return run(*given)

    made = kept(begun)
    start = starts.pop()
    ends = [index for index, tensor in enumerate(made) if tensor.grad_fn is not None]
    reached = _End.apply(start, *(made[index] for index in ends)) if ends else ()  # type: ignore[no-untyped-call]
    return tuple({**dict(enumerate(made)), **dict(zip(ends, reached, strict=True))}.values())


class _Start(torch.autograd.Function):
    """Saves a tensor before all others of a block: who asks for it has the block run again."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()


class _EndContext(FunctionCtx):
    start: FunctionCtx


class _End(torch.autograd.Function):
    """What a block made, as it is; its backward, the first of the block, asks for what `start` saved."""

    @staticmethod
    def forward(ctx: _EndContext, start: FunctionCtx, *made: torch.Tensor) -> Tensors:
        ctx.start = start
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in made)

    @staticmethod
    def backward(ctx: _EndContext, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        _ = ctx.start.saved_tensors  # type: ignore[attr-defined]
        return (None, *gradients)


def runs_once(run: Run, *given: torch.Tensor, contexts: MakeContexts = PLAIN) -> Tensors:
    """`run(*given)`, whose saved tensors are made by one more run when the first of them is wanted.

    Until its end the first run has them as they are: a block that takes derivatives in its forward wants them there.
    """
    casts = {kind: torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}
    places, begun, remade = 0, list[torch.Tensor](), list[torch.Tensor]()
    first, again = contexts()

    def place(tensor: torch.Tensor) -> int:
        nonlocal places
        places += 1
        begun.append(tensor.detach())
        return places - 1

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        remade.append(tensor.detach())
        return remade[-1]

    def made(index: int) -> torch.Tensor:
        if begun:
            return begun[index]
        if not remade:
            with torch.enable_grad(), ExitStack() as casting, again, saved_tensors_hooks(keep, lambda tensor: tensor):
                for kind, dtype in casts.items():
                    casting.enter_context(torch.autocast(kind, dtype))
                run(*given)
            if len(remade) != places:
                raise RuntimeError(f"a block that ran again saved {len(remade)} tensors where it saved {places}")
        return remade[index]

    with first, saved_tensors_hooks(place, made):
        results = run(*given)
    begun.clear()
    return results
