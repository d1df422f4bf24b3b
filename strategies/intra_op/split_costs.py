"""What each way to do an op, each conversion and each way to keep a parameter costs: seconds of one microbatch.

In: a block class, the Costs of a problem, a device whose replica stands for all, the degree, rows. All numbers are
those of `compute`, `communication` and `updates`, as the estimate of a whole plan uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import prod
from typing import TypeAlias

from placer.costs.communication.intra_op import lines_of, moving_seconds
from placer.costs.compute.roofline import HOST_SECONDS, BlockSeconds, host_seconds, memory_rate, op_seconds
from placer.costs.costs import Costs
from placer.costs.memory.peak import state_bytes
from placer.costs.precision import OpNumerics
from placer.costs.timing.optimizer import update_bytes
from placer.graph import BlockClass, Op, Parameter, Summed, Tensor
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

# Of what an op may do, what it shall: a practitioner's rule, such as Megatron's. It leaves at least one choice.
Rule: TypeAlias = Callable[[BlockClass, Op, tuple[Choice, ...]], tuple[Choice, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CostedChoice:
    """A choice with the seconds of the local op and of what it communicates inside itself."""

    choice: Choice
    busy: BlockSeconds
    inside: float
    kept: float
    working: float


class SplitCosts:
    """SplitCosts of one class on a replica, `devices` or the `degree` devices from `device` on, for `rows` rows.

    byte: seconds that a byte counts which a device holds for a whole step or until the backward of a microbatch. With
    `once`, where one of so many blocks goes backward at a time and runs again for that, what it keeps then and what its
    ops have counts as much less.
    axis: what the devices are along, which bars some choices. Rows are those the sizes of `kind` are counted in.
    load: of the most loaded device, over the even share of the rows that experts get.
    rule: which of the choices an op may take; all, where there is none.
    outer: along two axes what each op does along the outer one; `axis` is then the inner one, of `fast` devices.
    """

    def __init__(
        self,
        costs: Costs,
        kind: BlockClass,
        *,
        device: int,
        degree: int,
        rows: int,
        microbatches: int,
        byte: float = 0.0,
        devices: tuple[int, ...] = (),
        axis: ReplicaAxis = TENSOR,
        load: float = 1.0,
        rule: Rule | None = None,
        outer: tuple[str, ...] = (),
        fast: int = 1,
    ) -> None:
        self.costs = costs
        self.kind = kind
        self.degree = degree
        self.rows = rows
        self.microbatches = microbatches
        self.byte, self.once = max(byte, TIE), 0
        self.axis = axis
        self.load = load
        self.rule = rule
        self.outer = outer
        self.inner = fast if outer else 1
        self.chip = costs.cluster.devices[device]
        self.devices = devices or tuple(range(device, device + degree))
        self._moving: dict[tuple[str, State, State], float | None] = {}

    def weighing(self, byte: float, microbatches: int, once: int = 0) -> SplitCosts:
        """The same with other seconds that a byte counts, and microbatches a step; the rest is made once for both."""
        assert self._ways is not None  # made before it is copied
        made = copy(self)
        made.byte, made.microbatches, made.once = max(byte, TIE), microbatches, once
        return made

    def choices(self, index: int) -> tuple[Choice, ...]:
        """What op `index` may do: every choice that the axis allows and whose sizes the degree cuts."""
        return tuple(self._ways[index])

    def doing(self, index: int, choice: Choice) -> BlockSeconds:
        """Seconds of the op on one device."""
        return self._ways[index][choice].busy

    def inside(self, index: int, choice: Choice) -> float:
        """Seconds of the collectives within the op."""
        return self._ways[index][choice].inside

    def tie(self, index: int, choice: Choice) -> float:
        """What the bytes count that the op keeps, and that its backward has."""
        way = self._ways[index][choice]
        return self.byte * ((way.kept + way.working) / self.once if self.once else way.kept)

    def converting(self, reference: str, have: State, want: State) -> float | None:
        """Seconds of a conversion there and of its gradient back; None where there is none."""
        key = (reference, have, want)
        if key not in self._moving:
            self._moving[key] = self._convert(reference, have, want)
        return self._moving[key]

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
        size = parameter.elements * share * numerics.weight_bytes
        summed = summed_over(state)
        if summed:
            axis = {Summed.OUTER: OUTER, Summed.INNER: INNER}.get(summed)
            lines = lines_of(self.devices, axis_word(axis, self.inner))
            seconds += moving_seconds("all_reduce", size, self.costs.network, lines)
        held = numerics.weight_bytes * 2 + state_bytes(numerics, self.costs.priced)
        return seconds / self.microbatches + self.byte * held * parameter.elements * share

    @property
    def host(self) -> float:
        """Seconds the host takes to issue the ops of the class."""
        return host_seconds(self.kind, self.chip, self.costs.settings)

    @property
    def host_each(self) -> float:
        """Seconds the host takes for one op more."""
        return HOST_SECONDS if self.chip.backend == "cuda" else 0.0

    @cached_property
    def trains(self) -> bool:
        """Whether the class has a backward."""
        return any(way.busy.backward for ways in self._ways for way in ways.values())

    @cached_property
    def _ways(self) -> tuple[dict[Choice, _CostedChoice], ...]:
        numbers = self.costs.numerics.ops(self.kind)
        every = zip(self.kind.ops, numbers, block_choices(self.kind), self.outer or repeat(""), strict=False)
        return tuple(self._of(op, own, choices, outer) for op, own, choices, outer in every)

    def _of(self, op: Op, numbers: OpNumerics, choices: tuple[Choice, ...], outer: str) -> dict[Choice, _CostedChoice]:
        call = call_of(self.kind, op, FEW)
        allowed = tuple(choice for choice in choices if self.axis.allows(self.kind, op, choice))
        if outer:
            first = next(choice for choice in choices if choice.name == outer)
            pairs = (combined(first, choice, self.inner) for choice in allowed)
            allowed = tuple(choice for choice in pairs if choice is not None)
        allowed = tuple(choice for choice in allowed if cuttable(choice, call, self.degree))
        if self.rule is not None:
            allowed = self.rule(self.kind, op, allowed)
        return {choice: self._way(op, choice, numbers) for choice in allowed}

    def _way(self, op: Op, choice: Choice, numbers: OpNumerics) -> _CostedChoice:
        made = local_op(self.kind, op, choice, self.degree, self.load)
        inside = 0.0
        for inner in inner_ops(self.kind, op, choice, self.degree, self.load):
            *words, line = (*inner.target.split(".")[1:], "")[:3]
            lines = lines_of(self.devices, line)
            sizes = (inner.written_bytes.at(self.rows), inner.backward_written_bytes.at(self.rows))
            inside += sum(
                moving_seconds(word, numbers.written * size, self.costs.network, lines)
                for word, size in zip(words, sizes, strict=True)
            )
        busy = op_seconds(made, numbers, self.chip, self.costs.settings, self.rows)
        # Gradients of the results, and of what it read: what `backwards` counts for an op.
        working = numbers.written * made.written_bytes.at(self.rows)
        working += numbers.read * made.backward_written_bytes.at(self.rows)
        kept = numbers.saved * made.saved_bytes.at(self.rows)
        return _CostedChoice(choice=choice, busy=busy, inside=inside, kept=kept, working=working)

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
            size = self._bytes(tensor) * self._share(left_as_is(step))
            lines = lines_of(self.devices, axis_word(step.axis, self.inner))
            seconds += sum(
                moving_seconds(word, size, self.costs.network, lines) for word in (forward, backward) if word
            )
        return seconds

    def _share(self, state: State) -> float:
        """The share of a tensor that a device holds."""
        return 1 / prod(one.degree for one in pieces(state.value, self.degree, 0))

    def _bytes(self, tensor: Tensor | Parameter) -> int:
        numerics = self.costs.numerics
        if isinstance(tensor, Parameter):
            return tensor.elements * numerics.weight_bytes
        return numerics.bytes_of(tensor, self.rows)
