"""Piper's problem: layers on equal devices by data, tensor and pipeline parallelism and recompute, within memory.

Source: Tarnawski, Narayanan, Phanishayee, "Piper: Multidimensional Planner for DNN Parallelization", NeurIPS 2021,
section 3; the weights of its terms as in the authors' published planner. The nodes are cut into stages 1..l, each the
difference of two down-closed sets. Stage i runs on `data x tensor` devices d_i t_i, and each of its nodes in one of
the variants that the node offers for t_i. Every device of stage i takes, per microbatch of the whole pipeline,

    time_i = ( sum of time  +  sum of 2 (bytes of the edge + sync bytes of the node's end) / bandwidth ) / d_i
             + sum of 4 (d_i - 1) / d_i * parameter bytes / microbatches / bandwidth
    memory_i = sum of a * y_i + b,      y_i = ceil((d_i + d_i+1 + ... + d_l) / d_i)

where the second sum runs over the edges that cross the border of the stage, in or out. The value of a plan is the
largest time_i; sum of d_i t_i <= devices, sum of d_i <= microbatches, d_i divides microbatches. Times are in the unit
of the file divided into bytes per that unit by `bandwidth`, as published.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from importlib.resources import files

from placer.errors import IllegalPlanError, UsageError

# Memory sums of hundreds of terms differ in the last bits with their order; a device of 8 GiB gains 0.01 byte.
ROUNDING = 1e-12
# Of the published settings.
PUBLISHED_BANDWIDTH = 25 * 2**30
PUBLISHED_UNITS = {"bert32a100": "s", "resnet": "ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run a node at one tensor degree: `time` of a microbatch forward and backward, bytes, sync bytes.

    `forward_bytes` are what an edge from the named node costs besides its own bytes, `backward_bytes` one to it.
    """

    name: str
    time: float
    parameter_bytes: float
    a_bytes: float
    b_bytes: float
    forward_bytes: tuple[tuple[int, float], ...] = ()
    backward_bytes: tuple[tuple[int, float], ...] = ()

    def memory(self, y: int) -> float:
        """Bytes of a device that keeps the activations of `y` microbatches."""
        return self.a_bytes * y + self.b_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperNode:
    """A layer: its variants by tensor degree, ascending."""

    id: int
    name: str
    variants: tuple[tuple[int, tuple[Variant, ...]], ...]

    def at(self, tensor: int) -> tuple[Variant, ...]:
        """The variants at this tensor degree; none where the node cannot run so."""
        return next((found for degree, found in self.variants if degree == tensor), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperEdge:
    """What `source` gives `target`: bytes of a microbatch, each way."""

    source: int
    target: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperProblem:
    """The graph and the machines: `devices` equal ones of `memory_bytes`, `bandwidth` in bytes per unit of time."""

    nodes: tuple[PiperNode, ...]
    edges: tuple[PiperEdge, ...]
    devices: int
    memory_bytes: float
    bandwidth: float
    microbatches: int
    by_id: dict[int, PiperNode] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {node.id: node for node in self.nodes})
        _check_sizes(self)
        _check_graph(self)

    @property
    def format(self) -> str:
        """The key of its solver."""
        return "piper"

    @property
    def tensor_degrees(self) -> tuple[int, ...]:
        """The tensor degrees that some node offers and the devices allow, ascending."""
        offered = {degree for node in self.nodes for degree, variants in node.variants if variants}
        return tuple(sorted(t for t in offered if t <= self.devices))

    @property
    def data_degrees(self) -> tuple[int, ...]:
        """The data degrees that divide the microbatches, ascending."""
        return tuple(d for d in range(1, min(self.devices, self.microbatches) + 1) if self.microbatches % d == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperStage:
    """A stage: its nodes, its degrees, and the name of the variant of each node, in the order of `nodes`."""

    nodes: tuple[int, ...]
    data: int
    tensor: int
    variants: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperValue:
    """What a plan costs: `value`, the largest of `times`; `memory_bytes` of a device of each stage."""

    value: float
    times: tuple[float, ...]
    memory_bytes: tuple[float, ...]


def value_of(problem: PiperProblem, stages: tuple[PiperStage, ...]) -> PiperValue:
    """The cost of a plan by the formula of the module. Raises IllegalPlanError naming every rule that it breaks."""
    broken = [*_broken_cover(problem, stages), *_broken_degrees(problem, stages)]
    if broken:
        raise IllegalPlanError(f"{'; '.join(broken)}: no plan of this problem; choose other stages")
    times, memory = [], []
    for index, stage in enumerate(stages):
        chosen = _chosen(problem, stage)
        y = -(-sum(later.data for later in stages[index:]) // stage.data)
        times.append(stage_time(problem, stage, chosen))
        memory.append(sum(variant.memory(y) for variant in chosen))
        if memory[-1] > problem.memory_bytes * (1 + ROUNDING):
            raise IllegalPlanError(
                f"stage {index} needs {memory[-1] / 2**30:.3f} GiB of {problem.memory_bytes / 2**30:.3f} GiB; "
                "choose recompute, more tensor degree or fewer nodes"
            )
    return PiperValue(value=max(times), times=tuple(times), memory_bytes=tuple(memory))


def stage_time(problem: PiperProblem, stage: PiperStage, chosen: tuple[Variant, ...]) -> float:
    """Time of a device of `stage` per microbatch, with `chosen` the variant of each of its nodes."""
    compute = sum(variant.time for variant in chosen) / stage.data
    edges = border_bytes(problem, stage.nodes, chosen) / stage.data
    replicas = 4 * (stage.data - 1) / stage.data * sum(v.parameter_bytes for v in chosen) / problem.microbatches
    return compute + (edges + replicas) / problem.bandwidth


def border_bytes(problem: PiperProblem, nodes: tuple[int, ...], chosen: tuple[Variant, ...]) -> float:
    """Bytes over the edges that cross the border of `nodes`, both ways, with the sync bytes of the end inside."""
    inside = dict(zip(nodes, chosen, strict=True))
    total = 0.0
    for edge in problem.edges:
        if edge.target in inside and edge.source not in inside:
            total += 2 * (edge.bytes + dict(inside[edge.target].forward_bytes).get(edge.source, 0.0))
        if edge.source in inside and edge.target not in inside:
            total += 2 * (edge.bytes + dict(inside[edge.source].backward_bytes).get(edge.target, 0.0))
    return total


def _chosen(problem: PiperProblem, stage: PiperStage) -> tuple[Variant, ...]:
    """The variant of each node of `stage`."""
    offered = (problem.by_id[node].at(stage.tensor) for node in stage.nodes)
    return tuple(next(v for v in of if v.name == name) for of, name in zip(offered, stage.variants, strict=True))


def _broken_cover(problem: PiperProblem, stages: tuple[PiperStage, ...]) -> list[str]:
    """Every node in one stage, in an offered variant; no edge to an earlier stage."""
    placed = [node for stage in stages for node in stage.nodes]
    if sorted(placed) != sorted(problem.by_id):
        return [f"the stages hold {len(placed)} nodes, {len(set(placed))} different, of the {len(problem.by_id)}"]
    at = {node: index for index, stage in enumerate(stages) for node in stage.nodes}
    backward = [edge for edge in problem.edges if at[edge.source] > at[edge.target]]
    broken = [f"edge {edge.source} -> {edge.target} leads to an earlier stage" for edge in backward[:1]]
    for index, stage in enumerate(stages):
        if len(stage.variants) != len(stage.nodes):
            broken.append(f"stage {index} names {len(stage.variants)} variants for {len(stage.nodes)} nodes")
            continue
        for node, name in zip(stage.nodes, stage.variants, strict=True):
            if name not in {variant.name for variant in problem.by_id[node].at(stage.tensor)}:
                broken.append(f"node {node} has no variant {name!r} at tensor degree {stage.tensor}")
    return broken


def _broken_degrees(problem: PiperProblem, stages: tuple[PiperStage, ...]) -> list[str]:
    """Devices and data degrees within what there is."""
    broken = []
    used = sum(stage.data * stage.tensor for stage in stages)
    if used > problem.devices:
        broken.append(f"{used} devices used of {problem.devices}")
    if sum(stage.data for stage in stages) > problem.microbatches:
        broken.append(f"the data degrees add up to more than the {problem.microbatches} microbatches")
    for index, stage in enumerate(stages):
        if stage.data < 1 or problem.microbatches % stage.data:
            broken.append(f"data degree {stage.data} of stage {index} does not divide {problem.microbatches}")
    return broken


def _check_sizes(problem: PiperProblem) -> None:
    """Refuse machines that are none."""
    for name in ("devices", "memory_bytes", "bandwidth", "microbatches"):
        if not getattr(problem, name) > 0:
            raise UsageError(f"{name} must be above 0, found {getattr(problem, name)!r}; give it")
    if not problem.nodes or len(problem.by_id) != len(problem.nodes):
        raise UsageError(f"{len(problem.nodes)} nodes have {len(problem.by_id)} different ids; give each node its own")


def _check_graph(problem: PiperProblem) -> None:
    """Refuse edges to nowhere, edges given twice, and nodes that cannot run."""
    pairs = {(edge.source, edge.target) for edge in problem.edges}
    if len(pairs) != len(problem.edges):
        raise UsageError("an edge is given twice; give each pair of nodes one edge")
    for source, target in sorted(pairs):
        if source not in problem.by_id or target not in problem.by_id:
            raise UsageError(f"edge {source} -> {target} names a node that is not there; add the node")
    for node in problem.nodes:
        if not any(variants for _, variants in node.variants):
            raise UsageError(f"node {node.id} offers no variant at any tensor degree; give it one")


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperSetting:
    """One setting: the graph by name, the machines, the best known value (None: infeasible), that of an equal split.

    The values are those of an independent run of the published planner and of its equal-split planner (PipeDream-2BW
    rule) on both graphs of the paper that ship with it, all at 25 GiB/s. bert32a100 is in seconds, resnet in
    milliseconds (with a bandwidth per second, as published: its communication weighs 1000 times too little).
    """

    graph: str
    devices: int
    memory_GiB: float  # noqa: N815 - the unit of the table
    microbatches: int
    best_known: float | None
    equal_split: float | None


def published_settings() -> tuple[PiperSetting, ...]:
    """All settings with a best known value, in the order of `published/piper.csv`."""
    text = (files("placer.placement") / "published/piper.csv").read_text()
    return tuple(
        PiperSetting(
            graph=row["graph"],
            devices=int(row["devices"]),
            memory_GiB=float(row["memory_GiB"]),
            microbatches=int(row["microbatches"]),
            best_known=float(row["best_known"]) if row["best_known"] else None,
            equal_split=float(row["equal_split"]) if row["equal_split"] else None,
        )
        for row in csv.DictReader(text.splitlines())
    )
