"""What each way to do an op, each conversion and each way to keep a parameter costs: seconds of one microbatch.

In: a block class, the Costs of a problem, a replica that stands for all. All numbers are those of `costs.compute`,
`costs.communication` and `costs.timing.optimizer`, as the estimate of a whole plan uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import repeat
from math import prod
from typing import TypeAlias

from placer.costs.communication.intra_op import lines_of, moving_seconds
from placer.costs.compute.host_issue import HostSeconds, issued
from placer.costs.compute.roofline import BlockSeconds, host_seconds, memory_rate, op_seconds
from placer.costs.costs import Costs
from placer.costs.memory.peak import state_bytes
from placer.costs.precision import OpNumerics
from placer.costs.timing.after_backward import update_bytes
from placer.graph import ITEM_BYTES, BlockClass, Op, Parameter, Summed, Tensor
from placer.plans.settings import BALANCED
from placer.rules.graph_calls import call_of
from placer.rules.layouts import Choice, State, conversion
from placer.rules.splits.block_choices import block_choices
from placer.rules.splits.localise import cuttable
from placer.rules.two_axis_layouts import INNER, OUTER, combined, pieces, steps
from placer.spmd.local_ops import FEW, axis_word, inner_ops, left_as_is, local_op
from placer.spmd.parameter_layouts import summed_over
from placer.strategies.space.axes import ReplicaAxis

TENSOR = ReplicaAxis(name="tensor")
# Seconds per byte kept for backward or as state: far below what any op costs, it decides between equals.
TIE = 1e-18

# Microbatches among which the cost of updating is divided when splits are compared.
MICROBATCHES = 8

# Of what an op may do, what it shall: a practitioner's rule, such as Megatron's. It leaves at least one choice.
Rule: TypeAlias = Callable[[BlockClass, Op, tuple[Choice, ...]], tuple[Choice, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReplica:
    """A replica that splits are priced for, the rows of a microbatch, and how many of these a step has at least.

    axis: what the devices are along, which bars some choices; of two axes the inner one, of `fast` devices.
    load: of the most loaded device, over the even share of the rows that experts get.
    """

    devices: tuple[int, ...]
    rows: int
    microbatches: int = MICROBATCHES
    axis: ReplicaAxis = TENSOR
    fast: int = 1
    load: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceCosts:
    """Of an op done one way: seconds on one device and of the collectives inside it, bytes it keeps and has."""

    busy: BlockSeconds
    inside: float
    kept: float
    working: float


@dataclass(kw_only=True, eq=False)
class SplitCosts:
    """What the splits of one class cost on a replica. Rows are those the sizes of `kind` are counted in.

    rule: which of the choices an op may take; all, where there is none.
    outer: along two axes what each op does along the outer one.
    byte: seconds that a byte counts which a device holds for a whole step or until the backward of a microbatch. With
    `once`, where one of so many blocks goes backward at a time and runs again for that, what it keeps then and what its
    ops have counts as much less. microbatches: among which what is done once a step is divided.
    """

    costs: Costs
    kind: BlockClass
    replica: SplitReplica
    rule: Rule | None = None
    outer: tuple[str, ...] = ()
    byte: float = TIE
    microbatches: int = MICROBATCHES
    once: int = 0

    def __post_init__(self) -> None:
        self.chip = self.costs.cluster.devices[self.replica.devices[0]]
        self.degree = len(self.replica.devices)
        self.inner = self.replica.fast if self.outer else 1
        #: Seconds of a conversion there and of its gradient back; None where there is none.
        self.converting = cache(self._convert)

    def weighing(self, byte: float, microbatches: int, once: int = 0) -> SplitCosts:
        """The same with other seconds that a byte counts, and microbatches a step; the rest is made once for both."""
        assert self._choices is not None  # made before it is copied
        made = copy(self)
        made.byte, made.microbatches, made.once = max(byte, TIE), microbatches, once
        return made

    def choices(self, index: int) -> dict[Choice, ChoiceCosts]:
        """What op `index` may do: every choice that the axis allows and whose sizes the degree cuts."""
        return self._choices[index]

    def tie(self, cost: ChoiceCosts) -> float:
        """What the bytes count that the op keeps, and that its backward has."""
        return self.byte * ((cost.kept + cost.working) / self.once if self.once else cost.kept)

    def moves(self, reference: str, have: State, want: State) -> bool:
        """Whether a conversion is an op of its own."""
        return have.value != want.value or (self._trains(reference) and have.gradient != want.gradient)

    def keeping(self, parameter: Parameter, state: State) -> float:
        """Seconds per microbatch of what a step does with a parameter: its update, and the sum of partial gradients."""
        if parameter.buffer or not parameter.trainable:
            return 0.0
        numerics, share = self.costs.numerics, self._share(state)
        moved = parameter.elements * share * update_bytes(numerics, self.costs.priced)
        seconds = moved / memory_rate(self.chip)
        size = numerics.summed(parameter.elements * share * numerics.weight_bytes)
        summed = summed_over(state)
        if summed:
            axis = {Summed.OUTER: OUTER, Summed.INNER: INNER}.get(summed)
            lines = lines_of(self.replica.devices, axis_word(axis, self.inner))
            seconds += moving_seconds("all_reduce", size, self.costs.network, lines)
        held = numerics.weight_bytes * 2 + state_bytes(numerics, self.costs.priced)
        return seconds / self.microbatches + self.byte * held * parameter.elements * share

    @property
    def host(self) -> HostSeconds:
        """Seconds the host takes to issue the ops of the class."""
        settings = self.costs.settings
        copies = 0 if settings.fusion else sum(own.copies for own in self.costs.numerics.ops(self.kind))
        return host_seconds(self.kind, self.chip, settings, copies)

    @property
    def host_each(self) -> HostSeconds:
        """Seconds the host takes for one op more."""
        return issued(self.chip, self.costs.settings, 1)

    @cached_property
    def trains(self) -> bool:
        """Whether the class has a backward."""
        return any(cost.busy.backward for choices in self._choices for cost in choices.values())

    @cached_property
    def _choices(self) -> tuple[dict[Choice, ChoiceCosts], ...]:
        numbers = self.costs.numerics.ops(self.kind)
        every = zip(self.kind.ops, numbers, block_choices(self.kind), self.outer or repeat(""), strict=False)
        return tuple(self._of(op, own, choices, outer) for op, own, choices, outer in every)

    def _of(self, op: Op, numbers: OpNumerics, choices: tuple[Choice, ...], outer: str) -> dict[Choice, ChoiceCosts]:
        call = call_of(self.kind, op, FEW)
        allowed = tuple(choice for choice in choices if self.replica.axis.allows(self.kind, op, choice))
        if outer:
            first = next(choice for choice in choices if choice.name == outer)
            pairs = (combined(first, choice, self.inner) for choice in allowed)
            allowed = tuple(choice for choice in pairs if choice is not None)
        allowed = tuple(choice for choice in allowed if cuttable(choice, call, self.degree))
        if self.rule is not None:
            allowed = self.rule(self.kind, op, allowed)
        return {choice: self._costs_of(op, choice, numbers) for choice in allowed}

    def _costs_of(self, op: Op, choice: Choice, numbers: OpNumerics) -> ChoiceCosts:
        balanced, rows, inside = self.costs.settings.stack in BALANCED, self.replica.rows, 0.0
        made = local_op(self.kind, op, choice, self.degree, self.replica.load, balanced=balanced)
        for inner in inner_ops(self.kind, op, choice, self.degree, self.replica.load):
            *words, line = (*inner.target.split(".")[1:], "")[:3]
            lines = lines_of(self.replica.devices, line)
            sizes = (inner.written_bytes.at(rows), inner.backward_written_bytes.at(rows))
            factor = self.costs.numerics.sent_inside(numbers, inner.target)
            inside += sum(
                moving_seconds(word, factor * size, self.costs.network, lines)
                for word, size in zip(words, sizes, strict=True)
            )
        busy = op_seconds(made, numbers, self.chip, self.costs.settings, rows)
        # Gradients of the results, and of what it read: what `costs.memory.backward` counts for an op.
        working = numbers.written * made.written_bytes.at(rows) + numbers.read * made.backward_written_bytes.at(rows)
        kept = numbers.saved * made.saved_bytes.at(rows)
        return ChoiceCosts(busy=busy, inside=inside, kept=kept, working=working)

    def _trains(self, reference: str) -> bool:
        tensor = self.kind.tensor(reference)
        return tensor.trainable and not tensor.buffer if isinstance(tensor, Parameter) else tensor.requires_grad

    def _convert(self, reference: str, have: State, want: State) -> float | None:
        tensor, seconds = self.kind.tensor(reference), 0.0
        for step in steps(have, want):
            forward = conversion(step.have.value, step.want.value)
            backward = conversion(step.want.gradient, step.have.gradient) if self._trains(reference) else ""
            if "none" in (forward, backward):
                return None
            size = self._bytes(reference, tensor) * self._share(left_as_is(step))
            lines = lines_of(self.replica.devices, axis_word(step.axis, self.inner))
            seconds += sum(
                moving_seconds(word, size, self.costs.network, lines) for word in (forward, backward) if word
            )
        return seconds

    def _share(self, state: State) -> float:
        """The share of a tensor that a device holds."""
        return 1 / prod(one.degree for one in pieces(state.value, self.degree, 0))

    def _bytes(self, reference: str, tensor: Tensor | Parameter) -> int:
        """Bytes of a value of the class in the type in which it runs."""
        own = ITEM_BYTES[self.costs.numerics.type_of(self.kind, reference)]
        if isinstance(tensor, Parameter):
            return tensor.elements * own
        return tensor.bytes_at(self.replica.rows) // ITEM_BYTES[tensor.dtype] * own
