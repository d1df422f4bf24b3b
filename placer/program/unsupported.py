"""Which values cannot cross between the stages that make and read them, and why.

Between meshes that differ a value is divided by its rows, and by the dims on which it is cut. That is refused where a
value has no dim of rows, where it is one for all rows (a statistic of a microbatch: which rows would it be of?), and
where it is cut on the very dim that grows with the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from placer.errors import UsageError
from placer.graph import Block, Graph, Parameter, Tensor
from placer.plans.plan import Plan
from placer.plans.transfers import Transfer, made_by, position_of, stage_of_block, transfers
from placer.program.lowering import crossings
from placer.spmd.cross_mesh import Mesh, require_routes, row_dim
from placer.spmd.parameter_layouts import value_state


def unequal_meshes(plan: Plan) -> Iterator[str]:
    """Each value that cannot cross as the plan wants, with what to do; the plan's stages, devices and layouts exist."""
    yield from _handed_over(plan)
    mixed: frozenset[str] | None = None
    for transfer in transfers(plan):
        source, target = (Mesh.of(plan, plan.stages[stage]) for stage in (transfer.source, transfer.target))
        if not source.like(target) and max(source.apart, target.apart) > 1:
            yield (
                f"between stages {transfer.source} and {transfer.target}, one of which has devices with own rows "
                "(axis rows or expert), rows are divided differently; give both as many replicas, shares and such "
                "a layout"
            )
            continue
        if not source.like(target):
            mixed = _mixed(plan.graph) if mixed is None else mixed
            yield from _divided(plan, transfer, mixed)
        if source.layout is not target.layout:
            yield from _cut(plan, transfer, source.degree, target.degree)


def indivisible(graph: Graph) -> frozenset[str]:
    """The block outputs that cannot be divided by rows: without one dim of rows, or one value for all rows."""
    outputs = (
        f"b{number}.{k}"
        for number, block in enumerate(graph.blocks)
        for k in range(len(graph.classes[block.kind].outputs))
    )
    return _mixed(graph) | {value for value in outputs if _undivided(graph.value(value))}


def _handed_over(plan: Plan) -> Iterator[str]:
    """Values that stay on their devices must be read as they were made: nothing converts them."""
    if len({stage.layout for stage in plan.stages}) < 2 or plan.positions == len(plan.stages):
        return
    home, positions = stage_of_block(plan), position_of(plan)
    for index, block in enumerate(plan.graph.blocks):
        for reference in dict.fromkeys(block.inputs):
            if not reference.startswith("b") or made_by(reference)[0] < 0:
                continue
            source, target = home[made_by(reference)[0]], home[index]
            same = positions[source] == positions[target]
            if same and value_state(plan, reference, source) != value_state(plan, reference, target):
                yield (
                    f"stages {source} and {target} share their devices, and their layouts disagree about {reference}; "
                    "give both the same layout"
                )


def _divided(plan: Plan, transfer: Transfer, mixed: frozenset[str]) -> Iterator[str]:
    for value in transfer.values:
        tensor = plan.graph.value(value)
        ends = f"{value} goes from stage {transfer.source} to stage {transfer.target}, which divide rows differently"
        if _undivided(tensor):
            yield f"{ends}, and has no one dim of rows; give both as many replicas with the same shares"
        if not tensor.batched and value in mixed:
            yield f"{ends}, and is one value for all rows; give both as many replicas with the same shares"


def _undivided(tensor: Tensor) -> bool:
    """Whether a value grows with the rows, and not along one dim."""
    return tensor.batched and row_dim(tensor) is None


def _cut(plan: Plan, transfer: Transfer, source: int, target: int) -> Iterator[str]:
    for crossing in crossings(plan, transfer, gradient=False):
        try:
            require_routes(crossing, source, target)
        except UsageError as error:
            yield f"between stages {transfer.source} and {transfer.target} {error}"


def _mixed(graph: Graph) -> frozenset[str]:
    """The block outputs without a dim of rows that are computed from rows."""
    for known, found in _KNOWN:
        if known is graph:
            return found
    _KNOWN.append((graph, _found_mixed(graph)))
    return _KNOWN[-1][1]


# What was asked for last: searches ask for one graph again and again.
_KNOWN: deque[tuple[Graph, frozenset[str]]] = deque(maxlen=8)


def _found_mixed(graph: Graph) -> frozenset[str]:
    rowed = {f"x:{entry.name}" for entry in graph.inputs if entry.tensor.batched}
    for number, block in ((-1, graph.prologue), *enumerate(graph.blocks)):
        found = _from_rows(graph, block, rowed)
        kind = graph.classes[block.kind]
        rowed |= {f"b{number}.{k}" for k, reference in enumerate(kind.outputs) if reference in found}
    return frozenset(value for value in rowed if not graph.value(value).batched)


def _from_rows(graph: Graph, block: Block, rowed: set[str]) -> set[str]:
    """The block's own references that depend on rows."""
    kind = graph.classes[block.kind]
    found = {f"i{index}" for index, reference in enumerate(block.inputs) if reference in rowed}
    for index, op in enumerate(kind.ops):
        if any(reference in found for reference in op.inputs):
            found |= {f"o{index}.{k}" for k in range(len(op.outputs))}
    for reference in kind.outputs:
        tensor = kind.tensor(reference)
        if not isinstance(tensor, Parameter) and tensor.batched:
            found.add(reference)
    return found
