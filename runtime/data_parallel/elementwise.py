"""Whether an optimizer moves each number by itself, as it must where a rank has some parameters, or pieces of them.

    again            two optimizers with all of them, which move alike where none draws random numbers
    rows, columns    two optimizers with the halves of every parameter, cut along its first or its last dim
    parameters       two optimizers with half of the parameters each
against one that has all of them, on random gradients, small and large ones (a limit on their norm may be far above
those of a trial). What each rank's parameters are told by their names, sizes and places (`param_groups`) is to be what
those of the whole model are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod

import torch
from torch import Tensor, nn

from placer.errors import UsageError
from placer.graph import Graph
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.buckets import parameter_users
from placer.runtime.data_parallel.given_parameters import (
    GivenParameters,
    OptimizerFactory,
    made_of,
    name_beside,
    require_all_copies,
)
from placer.spmd.parameter_layouts import held_parameters

# Steps of the trial, some more than a warm-up of rectified Adam (5), and by how much of a number's movement a piece may
# differ: states may have few bits.
STEPS, TOLERANCE = 12, 1e-4
SCALES = (1.0, 1e4)
# Sizes of the first tensor of a shape, above those from which on optimizers keep sums of rows and columns (128 in
# optax and timm), and of others like it.
LARGEST, SMALL = 288, 4
MOST_TENSORS = 512

_SETTINGS = (int, float, str, tuple)

#: Which part of a tensor each of two optimizers has; None where it has nothing of it.
_Share = Callable[[int, Tensor], Sequence[Tensor | None]]


def require_elementwise(plan: Plan, make: OptimizerFactory) -> None:
    """Raise UsageError where ranks have parts of the parameters and the optimizer moves those otherwise than all
    together, or all of them otherwise each time; one that cannot be tried on tensors of its own is taken at its word.
    """
    _require_same_groups(plan, make)
    begun = _begun(plan.graph)
    for (why, where, share), scale in product(_shares(plan, len(begun)), SCALES):
        try:
            off = _difference(make, begun, share, scale)
        except Exception:
            continue
        if off > TOLERANCE:
            raise UsageError(
                f"the optimizer moves {why} (by {off:.1%} of the movement), and {where}; or give an optimizer that "
                "works element by element"
            )


def _shares(plan: Plan, count: int) -> Iterable[tuple[str, str, _Share]]:
    """What ranks have of so many parameters under a plan: what is wrong with it, why and what to do, in words."""
    if plan.world_size > 1:
        drawn = f"the {plan.world_size} ranks of the plan would draw other random numbers: plan for one device"
        yield "the same parameters otherwise each time", drawn, lambda _, whole: (whole, whole)
    kept = sorted({stage.sharding for stage in plan.stages} - {"none"})
    how = dict.fromkeys([*(f"shard={one}" for one in kept), *(f"tensor={one.degree}" for one in plan.layouts)])
    cut = f"the plan cuts parameters ({', '.join(how)}): plan with --pin shard=none --pin tensor=1"
    if how:
        yield "the upper half of a tensor otherwise than the whole", cut, lambda _, whole: _halves(whole, 0)
    if plan.layouts:
        yield "the left half of a tensor otherwise than the whole", cut, lambda _, whole: _halves(whole, -1)
    if len(plan.stages) > 1:
        yield (
            "some parameters otherwise than beside the others",
            f"the plan gives them to {len(plan.stages)} stages: plan with --pin pipeline=1",
            lambda at, whole: (whole, None) if at < count // 2 else (None, whole),
        )


def _begun(graph: Graph) -> dict[str, Tensor]:
    """The first parameters that learn, some of their sizes and others like them smaller; every dim can be cut."""
    known: set[tuple[int, ...]] = set()
    found: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    learning = {name: one.shape for name, one in graph.parameters.items() if one.trainable and not one.buffer}
    for name, shape in islice(learning.items(), MOST_TENSORS):
        most = SMALL if shape in known else LARGEST
        known.add(shape)
        found[name] = torch.randn(_small(shape, most), generator=generator)
    return found


def _small(shape: Sequence[int], most: int) -> list[int]:
    """Sizes of at least 2 and at most so many, and of a tensor that takes no more time than a matrix of these."""
    sizes = [max(2, min(size, most)) for size in shape]
    while prod(sizes) > LARGEST * LARGEST:
        sizes[sizes.index(max(sizes))] //= 2
    return sizes


def _halves(whole: Tensor, dim: int) -> Sequence[Tensor | None]:
    return whole.chunk(2, dim) if whole.dim() else (whole, None)


def _require_same_groups(plan: Plan, make: OptimizerFactory) -> None:
    """Raise UsageError where a rank's parameters are told otherwise (a learning rate by size) than the whole ones."""
    every = {name: one.shape for name, one in plan.graph.parameters.items() if one.trainable and not one.buffer}
    whole = _told(make, every, {})
    for held in dict.fromkeys(_held(plan)) if whole else ():
        shapes, copies = dict(held.shapes), dict(held.copies)
        _require_made_of(make, shapes, copies)
        told = _told(make, shapes, copies)
        found = next((name for name in told if told[name] != whole.get(copies.get(name, name))), None)
        if found is not None:
            name = copies.get(found, found)
            raise UsageError(
                f"the optimizer tells {name} other settings where a rank has {_sizes(shapes[found])} of it, or not "
                f"all parameters, than where it is {_sizes(every[name])} beside all others; go by names (parameters."
                "named() gives the model's own), or plan with --pin shard=none --pin tensor=1 --pin pipeline=1"
            )


def _require_made_of(make: OptimizerFactory, shapes: Mapping[str, Sequence[int]], copies: Mapping[str, str]) -> None:
    """Raise UsageError where the function that makes the optimizer of all parameters has no use for those of a rank, or
    holds others in their place: on all ranks, not on that one alone. One without any has no optimizer."""
    try:
        if shapes:
            made_of(_without_memory(shapes, copies), make)
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(
            f"the optimizer's function makes one of all parameters and none of those that a rank has alone, as "
            f"{next(iter(shapes))} ({error}): freeze what is not to be trained (requires_grad_(False)), plan again and "
            "make it of all that it is given, or plan with --pin pipeline=1"
        ) from error
    except Exception:  # what fails otherwise fails on the rank, in words of its own
        return


def _without_memory(shapes: Mapping[str, Sequence[int]], copies: Mapping[str, str]) -> GivenParameters:
    held = {name: nn.Parameter(torch.empty(tuple(shape), device="meta")) for name, shape in shapes.items()}
    return GivenParameters(held, copies)


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _told(
    make: OptimizerFactory, shapes: Mapping[str, Sequence[int]], copies: Mapping[str, str]
) -> dict[str, dict[str, object]]:
    """The settings of each parameter that are numbers and words; nothing where the optimizer cannot be made of tensors
    without memory."""
    given = _without_memory(shapes, copies)
    names = dict(zip(map(id, given), shapes, strict=True))
    try:
        optimizer = make(given)
        groups = optimizer.param_groups
    except Exception:
        return {}
    require_all_copies(given, optimizer)
    return {
        names[id(one)]: {key: value for key, value in group.items() if isinstance(value, _SETTINGS)}
        for group in groups
        for one in group["params"]
        if id(one) in names
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """The sizes of what the optimizer of a rank has, and the model's names of second copies of tied parameters."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    copies: tuple[tuple[str, str], ...]


def _held(plan: Plan) -> Iterator[_Held]:
    """What the optimizer of each rank has."""
    for position, mesh in enumerate(plan.meshes):
        stages = [stage for stage, at in enumerate(position_of(plan)) if at == position]
        divides = any(plan.stages[stage].sharding != "none" for stage in stages)
        for inner, replica in product(range(mesh.degree), range(mesh.replicas if divides else 1)):
            pieces, found, copies = held_parameters(plan, inner), dict[str, tuple[int, ...]](), dict[str, str]()
            for stage in stages:
                parts = mesh.replicas if plan.stages[stage].sharding != "none" else 1
                for own in parameter_users(plan, stage):
                    if pieces[own].trainable:
                        name = name_beside(found, own, stage, copies)
                        found[name] = _rows(pieces[own].shape, parts, replica)
            yield _Held(shapes=tuple(found.items()), copies=tuple(copies.items()))


def _rows(shape: tuple[int, ...], parts: int, replica: int) -> tuple[int, ...]:
    """What is left of a shape whose dim 0 is divided, as `torch.chunk` does."""
    if parts == 1 or not shape:
        return shape
    each = -(-shape[0] // parts)
    return (min(shape[0], (replica + 1) * each) - min(shape[0], replica * each), *shape[1:])


def _difference(make: OptimizerFactory, begun: Mapping[str, Tensor], share: _Share, scale: float) -> float:
    """The largest difference between what one optimizer makes of all tensors and two of their parts, by the largest
    movement; gradients are of this size."""
    together = {name: nn.Parameter(one.clone()) for name, one in begun.items()}
    sides: list[dict[str, nn.Parameter]] = [{}, {}]
    for at, (name, one) in enumerate(begun.items()):
        for side, part in zip(sides, share(at, one), strict=True):
            if part is not None:
                side[name] = nn.Parameter(part.clone(memory_format=torch.contiguous_format))
    optimizers = [make(GivenParameters(held)) for held in (together, *sides)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for at, (name, whole) in enumerate(together.items()):
            whole.grad = scale * torch.randn(whole.shape, generator=generator)
            for side, part in zip(sides, share(at, whole.grad), strict=True):
                if part is not None:
                    side[name].grad = part.clone(memory_format=torch.contiguous_format)
        for optimizer in optimizers:
            optimizer.step()
    off = max(
        (side[name].detach() - part).abs().max().item()
        for at, (name, whole) in enumerate(together.items())
        for side, part in zip(sides, share(at, whole.detach()), strict=True)
        if part is not None
    )
    moved = max((together[name].detach() - one).abs().max().item() for name, one in begun.items())
    return off / max(moved, 1e-30)
