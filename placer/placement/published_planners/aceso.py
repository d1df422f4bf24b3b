"""Aceso's problem and its performance model: ops in a row, pipeline stages, per op tensor and data degree, recompute.

Source: Liu et al., "Aceso: Efficient Parallel DNN Training through Iterative Bottleneck Alleviation", EuroSys 2024,
section 3.3, with the terms as in the authors' published search (microsoft/SuperScaler, branch of the artifact). With b
samples per microbatch of all replicas, n = global batch / b microbatches, and op j of a stage at b / data samples:

    time_i   = sum of (forward + backward) + sum of forward of the recomputed ops + input / bandwidth
               + output / bandwidth + sum of resharding, forward and backward            (milliseconds)
    step     = (n - 1) max_i time_i + sum_i time_i
    memory_i = states * weights + kept * (stages behind + 1) + peak + reserved            (megabytes)
    kept     = input + activations - those dropped: of an op that is recomputed as is the next one
    peak     = the most that one run of recomputed ops brings back
    reserved = max(forward + backward workspace, weights)

`states` counts weights, gradients, master weights and Adam's moments in units of the weights: 8 in fp16, 4 in fp32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from placer.errors import IllegalPlanError
from placer.placement.published_planners.aceso_layouts import resharding
from placer.placement.published_planners.aceso_profile import AcesoProfile, OpCost

# Weights, gradients, fp32 master weights and two moments, in units of the weights in the training precision.
STATES = {"gpt": 1 + 1 + 2 + 4, "t5": 1 + 1 + 2 + 4, "resnet": 1 + 1 + 0 + 2}
# The published search reshards between neighbours of different degrees for these; for T5 it counts nothing.
RESHARDED = ("gpt", "resnet")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoProblem:
    """What to place: ops by name in their order, `family` gpt, t5 or resnet, on equal devices of one node or more."""

    family: str
    ops: tuple[str, ...]
    profile: AcesoProfile
    devices: int
    devices_per_node: int
    memory_MB: float  # noqa: N815 - the unit of the published files
    global_batch: int
    microbatches: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoStage:
    """A stage: per op tensor degree, data degree, algorithm (0: the usual dim, 1: the other), recomputed or not."""

    tensor: tuple[int, ...]
    data: tuple[int, ...]
    algo: tuple[int, ...]
    recompute: tuple[bool, ...]

    @property
    def devices(self) -> int:
        """Devices of the stage; the same for every op of a legal one."""
        return self.tensor[0] * self.data[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoPlan:
    """Samples of all replicas per microbatch, and the stages, first to last."""

    microbatch: int
    stages: tuple[AcesoStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoMemory:
    """Megabytes of one stage by kind; `normal` and `reserved` as the published reports split them."""

    states: float
    kept: float
    peak: float
    reserved: float

    @property
    def normal(self) -> float:
        """All but the reserved workspace."""
        return self.states + self.kept + self.peak

    @property
    def total(self) -> float:
        """All of it."""
        return self.normal + self.reserved


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoValue:
    """`milliseconds` per iteration, those of each stage per microbatch, and the memory of each stage."""

    milliseconds: float
    stage_milliseconds: tuple[float, ...]
    memory: tuple[AcesoMemory, ...]

    @property
    def peak_MB(self) -> float:  # noqa: N802 - the unit of the published files
        """Megabytes of the fullest device."""
        return max(memory.total for memory in self.memory)


def step_of(problem: AcesoProblem, plan: AcesoPlan) -> AcesoValue:
    """Time and memory of a plan; `peak_MB` tells whether it fits. Raises IllegalPlanError naming what is wrong."""
    check_plan(problem, plan)
    times, memory, first = [], [], 0
    for index, stage in enumerate(plan.stages):
        ops = problem.ops[first : first + len(stage.tensor)]
        each = zip(ops, stage.data, stage.tensor, stage.algo, strict=True)
        costs = tuple(problem.profile.cost(op, plan.microbatch // d, t, algo) for op, d, t, algo in each)
        before = sum(earlier.devices for earlier in plan.stages[:index])
        times.append(stage_time(problem, stage, ops, costs, before))
        memory.append(stage_memory(problem, stage, ops, costs, len(plan.stages) - index - 1))
        first += len(ops)
    step = (problem.global_batch // plan.microbatch - 1) * max(times) + sum(times)
    return AcesoValue(milliseconds=step, stage_milliseconds=tuple(times), memory=tuple(memory))


def stage_time(
    problem: AcesoProblem, stage: AcesoStage, ops: tuple[str, ...], costs: tuple[OpCost, ...], before: int
) -> float:
    """Milliseconds of a stage per microbatch; `before` devices belong to earlier stages."""
    compute = sum(cost.forward_us + cost.backward_us for cost in costs)
    again = sum(cost.forward_us for cost, redone in zip(costs, stage.recompute, strict=True) if redone)
    enters_node = before > 0 and before % problem.devices_per_node == 0
    leaves_node = (before + stage.devices) % problem.devices_per_node == 0
    sent = problem.profile.transfer_us(costs[0].input_MB, between_nodes=enters_node)
    sent += problem.profile.transfer_us(_sent_on(problem, stage, ops, costs), between_nodes=leaves_node)
    return (compute + again + sent + 1000 * sum(_reshards(problem, stage, ops, costs))) / 1000


def _sent_on(problem: AcesoProblem, stage: AcesoStage, ops: tuple[str, ...], costs: tuple[OpCost, ...]) -> float:
    """Megabytes of the last op's output, at the tensor degree of the first op: as the published formula has it."""
    if stage.tensor[0] == stage.tensor[-1]:
        return costs[-1].output_MB
    return problem.profile.cost(ops[-1], costs[-1].samples, stage.tensor[0], stage.algo[-1]).output_MB


def _reshards(problem: AcesoProblem, stage: AcesoStage, ops: tuple[str, ...], costs: tuple[OpCost, ...]) -> list[float]:
    """Milliseconds between neighbours whose layouts disagree, forward and backward."""
    if problem.family not in RESHARDED:
        return []
    shape = list(zip(ops, stage.tensor, stage.data, stage.algo, strict=True))
    pairs = [resharding(before, after) for before, after in pairwise(shape)]
    return [
        problem.profile.collective_ms(kind, found.devices, cost.input_MB)
        for found, cost in zip(pairs, costs[1:], strict=True)
        if found is not None
        for kind in (found.forward, found.backward)
        if kind is not None
    ]


def stage_memory(
    problem: AcesoProblem, stage: AcesoStage, ops: tuple[str, ...], costs: tuple[OpCost, ...], behind: int
) -> AcesoMemory:
    """Megabytes on a device of a stage with `behind` stages after it."""
    weights = sum(cost.weights_MB for cost in costs)
    sizes = [activations(op, cost) for op, cost in zip(ops, costs, strict=True)]
    kept = costs[0].input_MB + sum(sizes) - sum(dropped(stage, ops, sizes))
    workspace = max((c.forward_reserved_MB for c in costs[:-1]), default=0.0)
    workspace += max((c.backward_reserved_MB for c in costs[:-1]), default=0.0)
    return AcesoMemory(
        states=STATES[problem.family] * weights,
        kept=kept * (behind + 1),
        peak=max(runs_brought_back(stage, ops, sizes), default=0.0),
        reserved=max(workspace, weights),
    )


def activations(op: str, cost: OpCost) -> float:
    """Megabytes that an op keeps for backward: a softmax and a dropout share one tensor, as does a batch norm."""
    if op == "enc-attention-dropout":
        return cost.activations_MB * 1.5
    return 0.0 if shares_its_output(op) else cost.activations_MB


def shares_its_output(op: str) -> bool:
    """Ops whose output another keeps anyway."""
    skip = "-downsample" in op and "0-0" not in op
    return op in ("enc-attention-softmax", "bn1") or "-bn3" in op or skip


def ends_a_run(op_after: str) -> bool:
    """Recomputation starts afresh at each layer."""
    return op_after == "enc-1st-layernorm" or "-conv1" in op_after


def dropped(stage: AcesoStage, ops: tuple[str, ...], sizes: list[float]) -> list[float]:
    """Megabytes of each op that recomputation drops: its own where it and the next op of its layer are recomputed."""
    both = [a and b for a, b in pairwise(stage.recompute)]
    # what shares its output or is dropout is dropped even before a new layer; there is no such op in these models
    return [size for size, drop, after in zip(sizes, both, ops[1:], strict=False) if drop and not ends_a_run(after)]


def runs_brought_back(stage: AcesoStage, ops: tuple[str, ...], sizes: list[float]) -> list[float]:
    """Megabytes that backward brings back at once: of each run of recomputed ops, up to the end of its layer."""
    runs, run = [], 0.0
    for j, (a, b) in enumerate(pairwise(stage.recompute)):
        if a and b:
            run += sizes[j]
        if not (a and b) or ends_a_run(ops[j + 1]):
            runs.append(run)
            run = 0.0
    return [*runs, run]


def check_plan(problem: AcesoProblem, plan: AcesoPlan) -> None:
    """Raises IllegalPlanError where ops, devices, batch or profiled sizes do not agree."""
    placed = sum(len(stage.tensor) for stage in plan.stages)
    if placed != len(problem.ops):
        raise IllegalPlanError(f"the stages hold {placed} of {len(problem.ops)} ops; place every op once")
    if sum(stage.devices for stage in plan.stages) > problem.devices:
        raise IllegalPlanError(f"the stages use more than the {problem.devices} devices; use fewer")
    if problem.global_batch % plan.microbatch:
        raise IllegalPlanError(f"{plan.microbatch} samples do not divide the batch of {problem.global_batch}")
    for index, stage in enumerate(plan.stages):
        if {t * d for t, d in zip(stage.tensor, stage.data, strict=True)} != {stage.devices}:
            raise IllegalPlanError(f"the ops of stage {index} use different numbers of devices; use the same")
