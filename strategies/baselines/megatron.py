"""Megatron's rule of thumb: the baseline of those who train transformers on many GPUs.

The fewest devices a replica that fit (Narayanan et al., arXiv:2104.04473, takeaways 1 to 3): tensor parallel up to the
size of a node, pipeline parallel beyond, data parallel on the rest; of microbatches the best. `MegatronLayouts` makes
the layouts, its tensor split and its even stages, from the degrees that its tables print.

Tensor split (Shoeybi et al., arXiv:1909.08053, section 3): a block's first products are cut by columns, its second by
rows, attention by heads, the embedding and the loss by vocabulary; one sum of the block's result forward, one of its
gradient backward. With sequence parallelism (Korthikanti et al., arXiv:2205.05198, section 4.2.2) norms, dropouts and
additions between them lie cut on the sequence. Which of two neighbours is the column and which the row product, and
what the ops between them do, is the cheapest there is under these rules (`layouts.ruled_layout`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from placer.errors import UsageError
from placer.graph import BlockClass, Op, Parameter, Tensor
from placer.io.memo import remembered
from placer.plans.plan import Layout, Plan, Recompute, ScheduleName, Sharding
from placer.rules.graph_calls import tensor_arguments
from placer.rules.layouts import Choice, Cut
from placer.rules.two_axis_layouts import INNER
from placer.search.judge import broken_pins
from placer.search.problem import Pins, Problem
from placer.strategies.baselines.standard import Baseline
from placer.strategies.inter_op.partition.even import even_cuts, level_cuts
from placer.strategies.intra_op.layouts import layouts, ruled_layout, ruled_mesh
from placer.strategies.space.axes import OUTER_FIRST
from placer.strategies.space.outline import (
    Outline,
    divisors,
    plan_of,
    powers_of_two,
    recomputes,
    schedules,
    shardings,
    whole_batch,
)

# Rows of a microbatch on a replica that are tried: those of the paper's figures 7, 8 and 16.
MOST_ROWS = 8


class Megatron(Baseline):
    """Tensor inside the node as small as fits, pipeline across nodes, data on the rest."""

    name = "megatron"
    cut = OUTER_FIRST

    def candidates(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        """By devices a replica, from few to many, without recompute first; microbatches of all sizes are one group.
        When the seconds are over and there is some plan, none of more devices.

        Where the batch is not divided all are one group: devices beyond a replica would have nothing to do.
        """
        if whole_batch(problem):
            every = tuple(plan for group in self._groups(problem) for plan in group)
            yield from [every] if every else []
        else:
            yield from self._groups(problem)

    def _groups(self, problem: Problem) -> Iterator[tuple[Plan, ...]]:
        made = MegatronLayouts(problem)
        given = False
        tried = list(_replicas(problem))
        if problem.until is not None and whole_batch(problem):  # where one replica does all the work
            tried.sort(key=lambda degrees: (-degrees[0], degrees[1]))
        for tensor, pipeline in tried:
            if given and problem.spent:
                return
            for recompute in recomputes(problem):
                plans = _made(made, _degrees(problem, tensor, pipeline, recompute=recompute))
                kept = tuple(plan for plan in plans if not broken_pins(plan, problem.pins))
                if kept:
                    given = True
                    yield kept


def _replicas(problem: Problem) -> Iterator[tuple[int, int]]:
    """Tensor and pipeline degrees by the number of devices; the tensor degree fills the node first."""
    pins, size = problem.pins, min(node.size for node, _ in problem.cluster.groups)
    inside = divisors(size) if pins.tensor is None else (pins.tensor,)
    for tensor in inside:
        if pins.pipeline is not None:
            yield tensor, pins.pipeline
        elif tensor < inside[-1]:
            yield tensor, 1
        else:
            most = min(problem.cluster.size // tensor, len(problem.graph.blocks))
            yield from ((tensor, pipeline) for pipeline in powers_of_two(most))


def _degrees(problem: Problem, tensor: int, pipeline: int, *, recompute: Recompute) -> Iterator[MegatronDegrees]:
    """The layouts of given tensor and pipeline degrees, one for each size of microbatch."""
    rows = 1 if whole_batch(problem) else problem.rows
    data = problem.pins.data or min(problem.cluster.size // (tensor * pipeline), rows)
    if not data:
        return
    for schedule, virtual in schedules(problem, pipeline)[:1]:
        for sharding in shardings(problem, data, schedule)[:1]:
            sizes = [problem.rows] if whole_batch(problem) else powers_of_two(min(MOST_ROWS, rows // data))
            if problem.pins.microbatches:
                sizes = [-(-rows // problem.pins.microbatches // data)]
            for each in sizes:
                yield MegatronDegrees(
                    tensor=tensor, pipeline=pipeline, data=data, virtual=virtual, rows=each, schedule=schedule,
                    recompute=recompute, sharding=sharding,
                )  # fmt: skip


def _made(layouts: MegatronLayouts, wanted: Iterator[MegatronDegrees]) -> Iterator[Plan]:
    """The plans that the model and the cluster allow."""
    for degrees in wanted:
        try:
            yield layouts.plan(degrees)
        except UsageError:  # more devices or stages than there are, or no op of that many pieces
            continue


# Values of so many dims are batch, sequence, hidden.
TOKENS, SEQUENCE = 3, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronDegrees:
    """A Megatron layout by its degrees: what its tables print.

    rows: of a microbatch on each replica. virtual: stages per pipeline position (more than 1 interleaves).
    expert: devices over which experts lie, of those of `data`. context: devices that share a row's tokens.
    sequence: norms cut on the sequence where there is tensor parallelism. every: of so many blocks of a stage one runs
    again under `recompute`.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    virtual: int = 1
    expert: int = 1
    context: int = 1
    rows: int = 1
    sequence: bool = True
    schedule: ScheduleName = "1f1b"
    recompute: Recompute = False
    every: int = 1
    sharding: Sharding = "none"

    @property
    def devices(self) -> int:
        """How many devices the layout takes."""
        return self.tensor * self.pipeline * self.data * self.context


class MegatronLayouts:
    """Megatron's layouts of one problem; remembers the tensor splits it made."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = problem.costs

    def plan(self, degrees: MegatronDegrees) -> Plan:
        """The plan of these degrees, not judged. Raises UsageError where the model or the cluster has no such plan."""
        problem = self.problem
        stages, blocks = degrees.pipeline * degrees.virtual, len(problem.graph.blocks)
        if degrees.devices > problem.cluster.size or stages > blocks:
            raise UsageError(
                f"a layout of {degrees.devices} devices and {stages} stages was asked for, {problem.cluster.name} has "
                f"{problem.cluster.size} devices and the model {blocks} blocks; ask for fewer"
            )
        if degrees.data % degrees.expert:
            raise UsageError(
                f"experts over {degrees.expert} devices were asked for, and rows over {degrees.data}, which is no "
                "multiple of it; ask for fewer experts' devices"
            )
        layout = self._layout(degrees)
        outline = Outline(
            positions=degrees.pipeline, replicas=degrees.data // degrees.expert, virtual=degrees.virtual,
            rows=problem.rows, microbatch=min(problem.rows, degrees.rows * degrees.data), sharding=degrees.sharding,
            schedule="interleaved" if degrees.virtual > 1 else degrees.schedule, layout=-1 if layout is None else 0,
            degree=degrees.tensor * degrees.expert * degrees.context,
        )  # fmt: skip
        made = plan_of(problem, outline, stage_cuts(problem, outline), (degrees.recompute,) * stages, layout)
        return made if degrees.every == 1 or not degrees.recompute else _partly(made, degrees.every)

    def _layout(self, degrees: MegatronDegrees) -> Layout | None:
        """How a replica of several devices cuts the ops. Raises UsageError where it cannot."""
        if degrees.tensor == degrees.expert == degrees.context == 1:
            return None
        if degrees.expert == degrees.context == 1:
            layout = self.split(degrees.tensor, sequence=degrees.sequence)
        else:
            layout = self.mesh(degrees.tensor, degrees.expert, degrees.context)
        if layout is None:
            raise UsageError(
                f"no op of the model can be cut over tensor {degrees.tensor}, expert {degrees.expert}, context "
                f"{degrees.context} as Megatron does; ask for other degrees"
            )
        return layout

    @remembered
    def mesh(self, tensor: int, expert: int, context: int) -> Layout | None:
        """The best split over experts, or over tokens, and of the ops beside, these as Megatron does; None where there
        is none."""
        if tensor == expert == 1:
            return ruled_layout(self.problem, self.costs, (("sequence", context),), _tokens, cut=True)
        if tensor > 1 and (expert == 1 or context == 1):
            outer, rule = (("sequence", context), _tokens) if expert == 1 else (("expert", expert), None)
            return ruled_mesh(self.problem, self.costs, (outer, ("tensor", tensor)), rule, _rule_inside)
        pins = Pins(tensor=tensor, expert=expert, sequence=context)
        made = layouts(replace(self.problem, pins=pins, until=None), self.costs)
        return made[0] if made else None

    @remembered
    def split(self, degree: int, *, sequence: bool) -> Layout | None:
        """Megatron's tensor split over `degree` devices; None where there is none."""
        rule = _cut_sequence if sequence else _whole_sequence
        return ruled_layout(self.problem, self.costs, (("tensor", degree),), rule, cut=sequence)


def _partly(plan: Plan, every: int) -> Plan:
    """The plan with one of so many blocks of each stage run again, at least one."""
    stages = (
        replace(stage, recomputed=max(1, (stage.last - stage.first) // every)) for stage in plan.stages
    )  # fmt: skip
    return replace(plan, stages=tuple(stages))


def stage_cuts(problem: Problem, outline: Outline) -> tuple[int, ...]:
    """Equally many layers a stage, what is before them with the first, what is behind with the last.

    Where the layers are not a multiple of the stages, equally many blocks a stage, or one more.
    """
    first, last = _layers(problem)
    share, rest = divmod(last - first, outline.stages)
    if rest or not share:
        cut = level_cuts if outline.virtual > 1 else even_cuts
        return cut([1.0] * len(problem.graph.blocks), outline.stages)
    return tuple(first + share * stage for stage in range(1, outline.stages))


def _layers(problem: Problem) -> tuple[int, int]:
    """First and last (exclusive) block of the longest run of one class."""
    kinds = [block.kind for block in problem.graph.blocks]
    best, start = (0, 0), 0
    for index in range(1, len(kinds) + 1):
        if index == len(kinds) or kinds[index] != kinds[start]:
            best = max(best, (start, index), key=lambda run: run[1] - run[0])
            start = index
    return best


def _rule(kind: BlockClass, op: Op, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Products by columns or rows, attention by heads, the largest table and the loss by vocabulary; others freely."""
    wanted = tuple(choice for choice in choices if _names(kind, op, choice))
    if wanted:
        return wanted
    if op.kind == "gather" and any(r.startswith("p") for r in op.inputs):  # tables of positions are whole
        return tuple(choice for choice in choices if choice.name in ("whole", "deferred", "dim 1"))
    return choices


def _tokens(kind: BlockClass, op: Op, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Each device does the ops of its own tokens (Megatron-LM's context parallelism)."""
    cut = tuple(c for c in choices if any(isinstance(state.value, Cut) for state in (*c.inputs, *c.outputs)))
    return cut or choices


def _rule_inside(kind: BlockClass, op: Op, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """The rule of choices along two axes, for what an op does along the inner one."""
    inside = tuple(choice.axes[INNER] if choice.axes else choice for choice in choices)
    wanted = _rule(kind, op, inside)
    return tuple(choice for choice, own in zip(choices, inside, strict=True) if own in wanted)


def _cut_sequence(kind: BlockClass, op: Op, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """The same with norms, and what else sums over the hidden size, on pieces of the sequence."""
    pieces = tuple(c for c in choices if op.kind == "reduction" and _cuts_sequence(kind, op, c))
    return pieces or _rule(kind, op, choices)


def _whole_sequence(kind: BlockClass, op: Op, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """The same where nothing lies cut on the sequence."""
    return tuple(c for c in _rule(kind, op, choices) if not _cuts_sequence(kind, op, c)) or choices


def _names(kind: BlockClass, op: Op, choice: Choice) -> bool:
    """Whether a choice is Megatron's for an op that has parameters, or for attention or a loss."""
    weights = [kind.tensor(reference) for reference in op.inputs if reference.startswith("p")]
    if op.kind == "attention":
        return choice.name == "heads"
    if op.kind == "matmul" and weights:
        return choice.name == "k" or choice.name == "n" or choice.name.startswith("n in ")
    return choice.name == "classes" or (choice.name == "vocabulary" and _largest(kind, op))


def _largest(kind: BlockClass, op: Op) -> bool:
    """Whether the op reads the largest parameter of its block."""
    sizes = {f"p{i}": parameter.elements for i, parameter in enumerate(kind.parameters)}
    return any(sizes.get(reference, 0) == max(sizes.values()) for reference in op.inputs)


def _cuts_sequence(kind: BlockClass, op: Op, choice: Choice) -> bool:
    """Whether a choice cuts tokens. Before a loss a view puts classes where they lie: its result is not looked at."""
    values = [kind.tensor(reference) for reference in tensor_arguments(op)]
    made = () if _turns(op, values) else zip(op.outputs, choice.outputs, strict=True)
    pairs = () if choice.name == "classes" else (*zip(values, choice.inputs, strict=True), *made)
    return any(
        isinstance(value, Tensor) and len(value.shape) == TOKENS and isinstance(state.value, Cut)
        and state.value.dim == SEQUENCE
        for value, state in pairs
        if not isinstance(value, Parameter)
    )  # fmt: skip


def _turns(op: Op, values: Sequence[object]) -> bool:
    """Whether a view of rows of tokens has something else where these were."""
    return op.kind == "view" and any(
        isinstance(value, Tensor) and len(value.shape) == TOKENS == len(made.shape)
        and value.shape[SEQUENCE] != made.shape[SEQUENCE]
        for value in values
        for made in op.outputs
    )  # fmt: skip
