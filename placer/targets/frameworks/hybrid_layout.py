"""A plan in the words that all frameworks share: one degree per kind of parallelism, alike on every pipeline stage.

`hybrid_layout(plan)` gives the layout and, in words, what of the plan no such layout says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from placer.graph import Graph
from placer.plans.plan import Layout, Plan, Recompute, ScheduleName, Sharding, Stage, replica_rows
from placer.plans.settings import RunSettings
from placer.targets.frameworks.layer_stack import LayerStack, StagePart, layers_among

# What lies between blocks cut along dim 1, the tokens of a row.
_TOKENS = "cut 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridLayout:
    """One training step's layout: `data` replicas of tensor x context x expert devices on each of `pipeline` stages.

    data counts replicas whose rows differ, those along `expert` not among them. rows: of a global batch; microbatches:
    into which a replica's rows are cut; micro_rows: rows of a microbatch on a device that has rows of its own.
    parts: what each stage holds, `virtual` stages for each pipeline rank; empty where there is one. length: tokens of a
    row, 0 where a row has none.
    """

    model: str
    world: int
    devices: tuple[int, ...]
    on_cpus: bool
    rows: int
    length: int
    pipeline: int
    virtual: int
    schedule: ScheduleName
    stack: LayerStack | None
    parts: tuple[StagePart, ...]
    microbatches: int
    micro_rows: int
    data: int
    sharding: Sharding
    tensor: int
    context: int
    expert: int
    sequence_parallel: bool
    recompute: Recompute
    recomputed: int | None
    bucket_bytes: int
    settings: RunSettings

    @property
    def data_ranks(self) -> int:
        """Devices with rows of their own, of which the frameworks' data-parallel degree is the count."""
        return self.data * self.expert

    @property
    def local_rows(self) -> int:
        """Rows of a step on a device that has rows of its own."""
        return self.micro_rows * self.microbatches


def hybrid_layout(plan: Plan) -> tuple[HybridLayout, tuple[str, ...]]:
    """The layout of a plan's first stage, and what is unlike it or said by no framework."""
    first = plan.stages[0]
    layout = None if first.layout is None else plan.layouts[first.layout]
    axes = dict(layout.axes) if layout else {}
    expert = axes.get("expert", 1)
    stack, parts, cut = _stages(plan)
    reasons = (*_unlike(plan), *_axes_nobody_has(axes), *_uneven_rows(plan, expert), *_own_order(layout), *cut)
    return HybridLayout(
        model=plan.graph.name, world=plan.world_size, devices=plan.ranks,
        on_cpus=all(plan.cluster.devices[device].backend == "cpu" for device in plan.ranks), rows=plan.rows,
        length=_length(plan.graph),
        pipeline=plan.positions, virtual=max(1, len(plan.stages) // plan.positions), schedule=plan.schedule,
        stack=stack, parts=parts, microbatches=len(plan.microbatches),
        micro_rows=max(1, plan.microbatches[0] // (first.replicas * expert)), data=first.replicas,
        sharding=first.sharding, tensor=axes.get("tensor", 1), context=axes.get("sequence", 1), expert=expert,
        sequence_parallel=_between_blocks_cut(layout), recompute=first.recompute, recomputed=_recomputed(plan, first),
        bucket_bytes=plan.bucket_bytes, settings=plan.settings,
    ), tuple(dict.fromkeys(reasons))  # fmt: skip


def _unlike(plan: Plan) -> Iterator[str]:
    """In which ways the stages are not alike."""
    if plan.schedule == "branched":
        yield "its stages are a graph, whose branches compute at the same time"
    ways: dict[str, set[object]] = {
        "degrees of their own": {(stage.degree, stage.layout) for stage in plan.stages},
        "numbers of replicas of their own": {stage.replicas for stage in plan.stages},
        "shardings of their own": {stage.sharding for stage in plan.stages},
        "recompute of their own": {(stage.recompute, _recomputed(plan, stage)) for stage in plan.stages},
    }
    yield from (f"its stages have {way}" for way, found in ways.items() if len(found) > 1)
    if any(len(set(stage.shares)) > 1 for stage in plan.stages):
        yield "its replicas take unequal shares of the rows"


def _recomputed(plan: Plan, stage: Stage) -> int | None:
    """How many layers of a stage recompute; None: all."""
    if stage.recomputed is None:
        return None
    return layers_among(plan.graph, stage.first, stage.first + stage.recomputed)


def _uneven_rows(plan: Plan, expert: int) -> Iterator[str]:
    """Whether replicas or microbatches have other numbers of rows than their neighbours."""
    if len(set(plan.microbatches)) > 1:
        yield f"its microbatches have unlike numbers of rows ({_several(plan.microbatches)})"
    stage = plan.stages[0]
    rows = replica_rows(plan.microbatches[0], (), stage.replicas)
    if len(set(rows)) > 1 or rows[0] % expert:
        yield f"the {plan.microbatches[0]} rows of a microbatch do not divide by {stage.replicas * expert} devices"


def _axes_nobody_has(axes: dict[str, int]) -> Iterator[str]:
    for axis in ("height", "width"):
        if axes.get(axis, 1) > 1:
            yield f"it cuts images along their {axis} over {axes[axis]} devices"
    if axes.get("rows", 1) > 1:
        yield f"its {axes['rows']} devices of a replica have rows of their own, and exchange what mixes these"


def _own_order(layout: Layout | None) -> Iterator[str]:
    if layout and any(split and split.experts for split in layout.splits):
        yield "it says which expert lies where, in another order than the experts' own"


def _between_blocks_cut(layout: Layout | None) -> bool:
    """Whether what passes between blocks lies cut over its tokens."""
    splits = [split for split in layout.splits if split] if layout and layout.axis == "tensor" else []
    return any(_TOKENS in state for split in splits for state in (*split.inputs, *split.outputs))


def _stages(plan: Plan) -> tuple[LayerStack | None, tuple[StagePart, ...], tuple[str, ...]]:
    """The stack, what each stage holds of it, and why a pipeline cannot be said."""
    found = LayerStack.of(plan.graph)
    if len(plan.stages) == 1:
        return (None if isinstance(found, str) else found), (), ()
    if isinstance(found, str):
        return None, (), (f"{found}, by which a pipeline could be told",)
    parts = [found.part(plan.graph, stage.first, stage.last) for stage in plan.stages]
    wrong = tuple(part for part in parts if isinstance(part, str))
    return found, tuple(part for part in parts if isinstance(part, StagePart)), wrong


def _length(graph: Graph) -> int:
    """Tokens of a row: the second dim of the first input of integers."""
    for entry in graph.inputs:
        if entry.tensor.dtype == "int64" and len(entry.tensor.shape) == 2:
            return entry.tensor.shape_at(graph.rows)[1]
    return 0


def _several(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, dict.fromkeys(numbers)))
