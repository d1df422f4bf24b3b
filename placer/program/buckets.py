"""How the parameters of a stage are grouped for its collectives.

DDP (torch/csrc/distributed/c10d/reducer.cpp, torch 2.13): from the second step on buckets are filled in the order in
which gradients become ready, per dtype, and closed as soon as they reach the cap (a cap that is given, as ours is, also
limits the first bucket). The first step uses one bucket of everything.
FSDP2: a unit per block and a root for what several blocks share; parameters are padded to a multiple of the ranks in
dim 0. Those without dims or without elements are in none: they stay whole (`divides`).
placer's own: as DDP's, of what is whole on every replica.

Bytes are those of a run, which casts parameters of any floating type to its precision; under bfloat16-autocast they are
float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from placer.costs.precision import FLOATING
from placer.graph import ITEM_BYTES, Graph, Parameter, Summed
from placer.plans.gradient_order import ready_order
from placer.plans.plan import Plan
from placer.plans.settings import SIXTEEN_BITS, RunSettings
from placer.plans.transfers import stage_of_block
from placer.spmd.parameter_layouts import held_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """Parameters whose gradients are reduced together, in order, all of one dtype."""

    names: tuple[str, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardUnit:
    """Parameters that FSDP2 gathers and scatters together; `block` is -1 for the root. Bytes with padding.

    dtype: uint8 where they have several.
    """

    block: int
    names: tuple[str, ...]
    bytes: int
    gradient_bytes: int
    dtype: str


def divides(shape: Sequence[int]) -> bool:
    """Whether replicas can each have a piece of a parameter of this shape: it has dims, and elements."""
    return len(shape) > 0 and 0 not in shape


def summed_in(dtype: str, size: int) -> tuple[str, int]:
    """The type in which gradients of `dtype` are summed, and the bytes of `size` bytes of them in it: those of 16 bits
    in float32, as small ones would be lost beside a large sum."""
    return ("float32", size * 2) if dtype in SIXTEEN_BITS else (dtype, size)


def between_replicas(dtype: str, size: int, settings: RunSettings) -> tuple[str, int]:
    """The type in which replicas sum gradients of `dtype`, and the bytes of `size` bytes of them in it."""
    compressed = settings.gradient_compression
    if compressed == "none":
        return summed_in(dtype, size)
    return compressed, size // ITEM_BYTES[parameter_dtype("float32", settings)] * ITEM_BYTES[compressed]


def ddp_buckets(plan: Plan, inner: int = 0) -> tuple[GradientBucket, ...]:
    """The buckets of a one-stage replicated plan, in order of reduction; of device `inner` of each replica."""
    return tuple(_filled(held_parameters(plan, inner), plan, ready_order(plan.graph, *_span(plan, 0))))


def gradient_buckets(plan: Plan, stage: int, inner: int = 0) -> tuple[GradientBucket, ...]:
    """placer's buckets of a stage, in order of reduction; parameters tied to other stages are not among them."""
    shared, parameters, sharded = shared_parameters(plan), plan.graph.parameters, plan.stages[stage].by_fsdp
    ready = (name for name in ready_order(plan.graph, *_span(plan, stage)) if name not in shared)
    names = [name for name in ready if not (sharded and divides(parameters[name].shape))]
    return tuple(_filled(held_parameters(plan, inner), plan, names))


def divided_buckets(plan: Plan, stage: int, inner: int = 0) -> tuple[GradientBucket, ...]:
    """The parameters of which each replica updates its rows, per dtype; bytes with the padding of rows, as FSDP2's."""
    ranks, held = plan.stages[stage].replicas, held_parameters(plan, inner)
    if plan.stages[stage].sharding != "optimizer" or ranks == 1:
        return ()
    found: dict[str, list[str]] = {}
    for name in ready_order(plan.graph, *_span(plan, stage)):
        if held[name].shape:
            found.setdefault(parameter_dtype(held[name].dtype, plan.settings), []).append(name)
    sizes = {dtype: sum(shard_bytes(held[name], plan.settings, ranks) for name in found[dtype]) for dtype in found}
    return tuple(GradientBucket(names=tuple(found[dtype]), dtype=dtype, bytes=sizes[dtype] * ranks) for dtype in found)


def part_buckets(plan: Plan, stage: int, inner: int = 0) -> tuple[tuple[Summed, GradientBucket], ...]:
    """The buckets of what each device of a replica has a part of the gradient of, and over which devices of it each is
    to be summed. Of sharded stages they hold the shards.
    """
    if not plan.layouts:
        return ()
    held, replicas = held_parameters(plan, inner), plan.stages[stage].replicas
    if plan.stages[stage].by_fsdp and replicas > 1:
        held = {name: _shard(parameter, replicas) for name, parameter in held.items()}
    names = [name for name in ready_order(plan.graph, *_span(plan, stage)) if held[name].summed]
    return tuple(
        (over, bucket)
        for over in Summed
        for bucket in _filled(held, plan, [name for name in names if held[name].summed == over])
    )


def shared_parameters(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Trainable parameters held by several stages, with those stages."""
    home = stage_of_block(plan)
    found = {name: tuple(sorted({home[b] for b in blocks if b in home})) for name, blocks in plan.graph.tied.items()}
    return {name: stages for name, stages in found.items() if len(stages) > 1}


def shard_units(plan: Plan, stage: int, inner: int = 0) -> tuple[ShardUnit, ...]:
    """FSDP2's units of a stage: the root first if it holds anything, then its blocks in order."""
    members: dict[int, list[str]] = {}
    for name, blocks in parameter_users(plan, stage).items():
        if divides(plan.graph.parameters[name].shape):
            members.setdefault(blocks[0] if len(blocks) == 1 else -1, []).append(name)
    held = held_parameters(plan, inner)
    return tuple(_unit(plan, stage, block, {name: held[name] for name in members[block]}) for block in sorted(members))


def trained_types(plan: Plan, unit: ShardUnit) -> tuple[str, ...]:
    """The types of what a unit trains."""
    every = (plan.graph.parameters[name] for name in unit.names)
    return tuple(sorted({parameter_dtype(one.dtype, plan.settings) for one in every if one.trainable}))


def mixed_types(graph: Graph, settings: RunSettings) -> str:
    """Which block of a graph has trainable parameters of several types, of which FSDP2 makes no unit; "" where none.

    What several blocks read is taken together, as the root of one stage of all would.
    """
    readers: dict[str, set[int]] = {}
    for index, block in enumerate(graph.blocks):
        for name in block.parameters:
            readers.setdefault(name, set()).add(index)
    found: dict[int, set[str]] = {}
    for name, blocks in readers.items():
        one = graph.parameters[name]
        if one.trainable and not one.buffer and divides(one.shape):
            unit = min(blocks) if len(blocks) == 1 else -1
            found.setdefault(unit, set()).add(parameter_dtype(one.dtype, settings))
    for unit, types in sorted(found.items()):
        if len(types) > 1:
            where = graph.blocks[unit].name if unit >= 0 else "what several blocks share"
            return f"{where} has parameters of {' and of '.join(sorted(types))}"
    return ""


def parameter_users(plan: Plan, stage: int) -> dict[str, list[int]]:
    """The blocks of a stage that read each of its parameters."""
    users: dict[str, list[int]] = {}
    for block in range(*_span(plan, stage)):
        for name in dict.fromkeys(plan.graph.blocks[block].parameters):
            if not plan.graph.parameters[name].buffer:
                users.setdefault(name, []).append(block)
    return users


def parameter_dtype(dtype: str, settings: RunSettings) -> str:
    """The type in which a parameter captured as `dtype`, and what one backward gives of its gradient, is in a run."""
    if dtype not in FLOATING:
        return dtype
    return "float32" if settings.precision == "bfloat16-autocast" else settings.precision


def held_bytes(parameter: Parameter, settings: RunSettings) -> int:
    """Bytes of a parameter, and of what one backward gives of its gradient, in a run."""
    return parameter.elements * ITEM_BYTES[parameter_dtype(parameter.dtype, settings)]


def shard_bytes(parameter: Parameter, settings: RunSettings, ranks: int) -> int:
    """Bytes of the largest shard of a parameter split over `ranks` in dim 0."""
    rows = parameter.shape[0] if parameter.shape else 1
    if not rows:
        return 0
    elements = -(-rows // ranks) * (parameter.elements // rows)
    return elements * ITEM_BYTES[parameter_dtype(parameter.dtype, settings)]


def _span(plan: Plan, stage: int) -> tuple[int, int]:
    return plan.stages[stage].first, plan.stages[stage].last


def _filled(parameters: Mapping[str, Parameter], plan: Plan, names: Iterable[str]) -> Iterator[GradientBucket]:
    """Buckets closed as soon as they reach the cap; what is left over at the end in a bucket per dtype."""
    pending: dict[str, list[str]] = {}
    size: dict[str, int] = {}
    for name in names:
        dtype = parameter_dtype(parameters[name].dtype, plan.settings)
        pending.setdefault(dtype, []).append(name)
        size[dtype] = size.get(dtype, 0) + held_bytes(parameters[name], plan.settings)
        if size[dtype] >= plan.bucket_bytes:
            yield GradientBucket(names=tuple(pending.pop(dtype)), dtype=dtype, bytes=size.pop(dtype))
    for dtype, members in pending.items():
        yield GradientBucket(names=tuple(members), dtype=dtype, bytes=size[dtype])


def _unit(plan: Plan, stage: int, block: int, held: Mapping[str, Parameter]) -> ShardUnit:
    settings, ranks = plan.settings, plan.stages[stage].replicas
    padded = {name: shard_bytes(parameter, settings, ranks) * ranks for name, parameter in held.items()}
    trained = sum(size for name, size in padded.items() if held[name].trainable)
    dtypes = sorted({parameter_dtype(parameter.dtype, settings) for parameter in held.values()})
    return ShardUnit(
        block=block, names=tuple(held), bytes=sum(padded.values()), gradient_bytes=trained,
        dtype=dtypes[0] if len(dtypes) == 1 else "uint8",
    )  # fmt: skip


def _shard(parameter: Parameter, ranks: int) -> Parameter:
    rows, *rest = parameter.shape or (1,)
    return replace(parameter, shape=(-(-rows // ranks), *rest))
