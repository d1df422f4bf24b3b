"""The ops of a split block class as one rank runs them: local sizes by the rules, conversions where they are needed.

FLOPs and matrix products follow from the rule of the local call. Bytes read and written scale with the bytes of the
op's local tensors; saved bytes with those of its tensors that account for them exactly, else with all of them. What an
op reads after a conversion, or with the padding that a window reads beyond the rank's rows, is a tensor of its own: an
op that keeps it keeps it beside the parameter it is of, or beside what the op before kept.

A piece of the queries of causal attention has a mask in place of the flag, for it begins further down
(`runtime/spmd/local_ops/positions.py`): no kernel leaves out what is hidden, and all keep the mask's numbers, and
grouped keys and values as they are repeated. So this runtime has it; stacks that cut such queries in balanced pieces
(`plans.settings.BALANCED`) leave out what is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from math import ceil, prod
from typing import Any

from placer.errors import UsageError
from placer.graph import ITEM_BYTES, Affine, BlockClass, Op, Parameter, Product, Tensor, affine_sum
from placer.io.refusals import short
from placer.rules.calls import Call, MatrixProduct, Value, Work
from placer.rules.cut_sizes import window_rows
from placer.rules.graph_calls import call_of, tensor_arguments
from placer.rules.layouts import SAME, Choice, Cut, Inner, State, conversion, inner_bytes, piece
from placer.rules.registry import registrations, rule_for
from placer.rules.splits.localise import local_forms
from placer.rules.two_axis_layouts import (
    INNER,
    OUTER,
    AxisStep,
    both_states,
    devices_along,
    fast_of,
    held_shape,
    middle,
    state_along,
    steps,
    strands,
)
from placer.spmd.layout_conversions import LEAVES, Conversion, Edges
from placer.spmd.parameter_layouts import held_value

# Row counts at which a local call is looked at; sizes are affine in rows.
FEW, MORE = 4, 5
NOTHING = "-"
# Of ops that are alike: what tells them apart, left out.
NAMELESS: dict[str, Any] = {"name": "", "module": "", "source": "", "inputs": ()}
# Where a call of attention says that it is causal.
FLAG = re.compile(r"(t0, t1, t2, (?:None|t\d+), [\d.e-]+, |\bis_causal=)True")
# Rows at loaded experts are counted in so many: 16 bytes of bfloat16, as products like them.
EVEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCall:
    """An op of `rows` rows, whole and on one rank."""

    rows: int
    whole: Call
    local: Call

    @staticmethod
    def of(block_class: BlockClass, op: Op, choice: Choice, degree: int, rows: int, load: float = 1.0) -> SampledCall:
        """The op of a class as its choice says; at experts `load` times their even share of the rows."""
        return SampledCall.of_call(call_of(block_class, op, rows), choice, degree, rows, load)

    @staticmethod
    def of_call(whole: Call, choice: Choice, degree: int, rows: int, load: float) -> SampledCall:
        """The call of so many rows as a choice says."""
        local = local_forms(whole, choice, degree, middle(degree, choice.fast)).call
        for _, one in strands(choice) if load != 1.0 else ():
            local = loaded(local, one, load)
        return SampledCall(rows=rows, whole=whole, local=local)

    @property
    def work(self) -> Work:
        """What the rank computes. Raises UsageError for shapes that no call of the op has, as only a file may say."""
        rule = rule_for(self.whole.target)
        try:
            return Work() if rule is None else rule(self.local)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            shapes = ", ".join(str(tensor.shape) for tensor in self.local.tensors)
            raise UsageError(
                f"the work of {self.whole.target} of tensors of shapes {short(shapes)} cannot be told: {error}"
            ) from error


def local_op(
    block_class: BlockClass, op: Op, choice: Choice, degree: int, load: float = 1.0, *, balanced: bool = False
) -> Op:
    """The op one rank runs, its inputs still named as in the whole class; at experts `load` times their even share.

    balanced: pieces of causal attention's queries run in kernels that leave out what is hidden, as much on each rank.
    """
    if all(one.name == "whole" for _, one in strands(choice)):
        return op
    calls = call_of(block_class, op, FEW), call_of(block_class, op, MORE)
    made = _unnamed(replace(op, **NAMELESS), calls, choice, degree, load, balanced, registrations())
    return replace(made, name=op.name, module=op.module, source=op.source, inputs=op.inputs)


@lru_cache(maxsize=16384)
def _unnamed(
    op: Op, calls: tuple[Call, Call], choice: Choice, degree: int, load: float, balanced: bool, _registrations: int
) -> Op:
    """What `local_op` says of all ops of such sizes, by the rules that are registered."""
    few, more = (
        SampledCall.of_call(call, choice, degree, rows, load) for call, rows in zip(calls, (FEW, MORE), strict=True)
    )
    read, written = _share(few.local.tensors, few.whole.tensors), _share(few.local.outputs, few.whole.outputs)
    both = _share((*few.local.tensors, *few.local.outputs), (*few.whole.tensors, *few.whole.outputs))
    saved, least, most = _saved_share(op, few, both), few.work, more.work
    made = replace(
        op,
        outputs=tuple(
            replace(tensor, shape=tuple(map(_line, a.shape, b.shape)))
            for tensor, a, b in zip(op.outputs, few.local.outputs, more.local.outputs, strict=True)
        ),
        forward_flops=_line(least.forward_flops, most.forward_flops),
        backward_flops=_line(least.backward_flops, most.backward_flops),
        read_bytes=op.read_bytes.scaled(read),
        written_bytes=op.written_bytes.scaled(written),
        backward_read_bytes=op.backward_read_bytes.scaled(both),
        backward_written_bytes=op.backward_written_bytes.scaled(read),
        saved_bytes=op.saved_bytes.scaled(saved),
        fused_saved_bytes=op.fused_saved_bytes.scaled(saved),
        products=tuple(map(_product, least.forward, most.forward)),
        backward_products=tuple(map(_product, least.backward, most.backward)),
    )
    if balanced or not any(one.local == "attention_rows" for _, one in strands(choice)):
        return made
    return _masked(made, few.local, more.local)


def _masked(op: Op, few: Call, more: Call) -> Op:
    """Attention with a mask in place of its flag."""
    item = ITEM_BYTES[op.outputs[0].dtype]
    beside = _line(*(_kept_with_mask(local, item) for local in (few, more)))
    saved = affine_sum((op.fused_saved_bytes, beside)) if any(op.fused_saved_bytes) else op.fused_saved_bytes
    return replace(op, arguments=FLAG.sub(r"\1False", op.arguments), fused_saved_bytes=saved)


def _kept_with_mask(local: Call, item: int) -> int:
    """Bytes of a mask's numbers, and of what grouped keys and values are more when they are repeated."""
    query, key, value = local.tensors[:3]
    mask = query.shape[-2] * key.shape[-2] * item
    repeats = query.shape[-3] // key.shape[-3] if len(query.shape) > 2 and key.shape[-3] else 1
    return mask + (repeats - 1) * (key.bytes + value.bytes)


def loaded(local: Call, choice: Choice, load: float) -> Call:
    """The call of a rank that has `load` times as many of the rows that lie at experts, or are computed there."""
    at_experts = [isinstance(state.value, Cut) and state.value.sent for state in choice.inputs]
    if choice.local.startswith("experts"):
        at_experts[0] = True
    sent = (isinstance(state.value, Cut) and state.value.sent for state in choice.outputs)
    return local.with_tensors(
        (_grown(value, load) if at else value for value, at in zip(local.tensors, at_experts, strict=True)),
        tuple(_grown(value, load) if at else value for value, at in zip(local.outputs, sent, strict=True)),
    )


def _grown(value: Value, load: float) -> Value:
    # Loads are averages: a number of rows that no kernel likes follows from none.
    return value._replace(shape=(ceil(value.shape[0] * load / EVEN) * EVEN, *value.shape[1:]))


def conversion_ops(tensor: Tensor | Parameter, found: Conversion, degree: int) -> Iterator[tuple[AxisStep, Op]]:
    """What turns a value of the whole shape `tensor` from one state into another, each op of it along one axis.

    UsageError where nothing does.
    """
    value = _value(tensor)
    for step in steps(found.have, found.want):
        forward = conversion(step.have.value, step.want.value)
        backward = conversion(step.want.gradient, step.have.gradient) if value.requires_grad else ""
        if "none" in (forward, backward):
            raise UsageError(f"{found.reference} lies as {found.have} and is wanted as {found.want}: there is no way")
        if step.have.value == step.want.value and not (value.requires_grad and step.have != step.want):
            continue
        size = _bytes(held_value(value, left_as_is(step), degree, _middle(degree, step.before)))
        suffix = _axis_suffix(step.axis, fast_of(*step[3:]))
        made = Op(
            name=f"convert {found.reference}",
            target=f"placer.{forward or NOTHING}.{backward or NOTHING}{suffix}",
            kind="communication",
            outputs=(held_value(value, step.after, degree, _middle(degree, step.after)),),
            written_bytes=size if forward else Affine(),
            backward_written_bytes=size if backward else Affine(),
        )
        yield step, made


def axis_word(axis: int | None, fast: int) -> str:
    """How a communication says that it runs along one of two axes, the inner of `fast` devices (`communication`)."""
    return "" if axis is None else f"{('outer', 'inner')[axis]}{fast}"


def _axis_suffix(axis: int | None, fast: int) -> str:
    return "" if axis is None else f".{axis_word(axis, fast)}"


def _middle(degree: int, state: State) -> int:
    return middle(degree, fast_of(state))


def left_as_is(step: AxisStep) -> State:
    """What a step leaves as it is: how the value lies along the other axis."""
    if step.axis is None:
        return SAME
    left = [SAME if axis == step.axis else state_along(step.before, axis) for axis in (OUTER, INNER)]
    return both_states(left[OUTER], left[INNER], fast_of(step.before, step.after))


def inner_ops(block_class: BlockClass, op: Op, choice: Choice, degree: int, load: float = 1.0) -> Iterator[Op]:
    """What an op communicates inside itself: rows of its neighbours, collectives of its choice."""
    if any(one.inner or any(one.halo) for _, one in strands(choice)):
        few, more = (SampledCall.of(block_class, op, choice, degree, rows, load) for rows in (FEW, MORE))
        for axis, one in strands(choice):
            line = _axis_suffix(axis, choice.fast)
            among = devices_along(degree, choice.fast, axis)
            yield from (_collective(op, inner, (few, more), among, line) for inner in one.inner)
            if any(one.halo):
                even = (SampledCall.of(block_class, op, choice, degree, rows) for rows in (FEW, MORE))
                moved = _line(*(_halo_bytes(sample, choice, axis, degree) for sample in even))
                back = moved if _returns(block_class, op, one) else Affine()
                yield _moving(op, ("exchange", "exchange"), moved, back, line)


def _returns(block_class: BlockClass, op: Op, choice: Choice) -> bool:
    """Whether gradients of what a window reads go back to where it came from."""
    read = zip(choice.halo, tensor_arguments(op), strict=True)
    return any(_value(block_class.tensor(reference)).requires_grad for halo, reference in read if halo is not None)


def _collective(op: Op, inner: Inner, samples: tuple[SampledCall, SampledCall], among: int, line: str) -> Op:
    """Sized as costs read it (`costs.communication.collectives`): an all-to-all by what all of the `among` devices hold
    together, each as much as the fullest, others by the buffer of one."""
    together = among if inner.collective == "all_to_all" else 1
    moved = _line(*(together * inner_bytes(inner, sample.local.tensors) for sample in samples))
    words = (NOTHING, inner.collective) if inner.backward else (inner.collective, NOTHING)
    return _moving(op, words, moved if not inner.backward else Affine(), moved if inner.backward else Affine(), line)


def _moving(op: Op, words: tuple[str, str], forward: Affine, backward: Affine, line: str) -> Op:
    return Op(
        name=f"inside {op.name}", target=f"placer.{words[0]}.{words[1]}{line}", kind="communication",
        written_bytes=forward, backward_written_bytes=backward,
    )  # fmt: skip


def _halo_bytes(sample: SampledCall, choice: Choice, axis: int | None, degree: int) -> int:
    """Bytes that the rank which gets most gets of others along an axis, first along the outer one."""
    total, rank = 0, middle(degree, choice.fast)
    (one,) = (found for at, found in strands(choice) if at == axis)
    count = devices_along(degree, choice.fast, axis)
    values = zip(one.halo, choice.inputs, sample.local.tensors, sample.whole.tensors, strict=True)
    for number, (halo, state, local, whole) in enumerate(values):
        if halo is not None:
            shape = list(held_shape(whole.shape, state.value, degree, rank)) if axis == OUTER else list(local.shape)
            shape[halo.dim] = max(_strange_rows(sample.whole, one, number, count, at) for at in range(count))
            total += prod(shape) * local.item_bytes
    return total


def _strange_rows(call: Call, choice: Choice, number: int, count: int, rank: int) -> int:
    """How many of the rows that a rank's window reads, of `count` along an axis, are not its own."""
    halo, window = choice.halo[number], window_rows(choice, call, number, count, rank)
    assert halo is not None
    start, end = piece(call.tensors[number].shape[halo.dim], count, rank)
    return window.end - window.start - max(0, min(end, window.end) - max(start, window.start))


def _share(local: Sequence[Value], whole: Sequence[Value]) -> float:
    total = sum(value.bytes for value in whole)
    return sum(value.bytes for value in local) / total if total else 1.0


def _saved_share(op: Op, sample: SampledCall, otherwise: float) -> float:
    """The share of what the op keeps: that of the fewest of its tensors that add up to it, else of all."""
    kept = op.saved_bytes.at(sample.rows)
    whole = [*sample.whole.tensors, *sample.whole.outputs]
    local = [*sample.local.tensors, *sample.local.outputs]
    for count in (1, 2, 3):
        for chosen in combinations(range(len(whole)), count):
            if kept and sum(whole[i].bytes for i in chosen) == kept:
                return _share([local[i] for i in chosen], [whole[i] for i in chosen])
    return otherwise


def _line(few: int, more: int) -> Affine:
    return Affine.through(FEW, few, MORE, more)


def _product(few: MatrixProduct, more: MatrixProduct) -> Product:
    batch, m, n, k = map(_line, few, more)
    return Product(batch=batch, m=m, n=n, k=k)


def _value(tensor: Tensor | Parameter) -> Tensor:
    if isinstance(tensor, Tensor):
        return tensor
    shape = tuple(Affine(size) for size in tensor.shape)
    return Tensor(shape=shape, dtype=tensor.dtype, requires_grad=tensor.trainable and not tensor.buffer)


def _bytes(tensor: Tensor) -> Affine:
    return _line(tensor.bytes_at(FEW), tensor.bytes_at(MORE))


@dataclass
class LocalClass:
    """The ops of a split class in order, conversions before their first user, while they are made."""

    block_class: BlockClass
    edges: Edges
    degree: int
    load: float = 1.0
    balanced: bool = False
    _ops: list[Op] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _converted: dict[tuple[int, int], str] = field(default_factory=dict)
    _steps: dict[tuple[str, State], str] = field(default_factory=dict)
    _kept: set[str] = field(default_factory=set)

    def made(self) -> tuple[tuple[Op, ...], tuple[str, ...]]:
        """Every op of the rank, and the values that leave the block."""
        waiting = list(self.edges.conversions)
        for index, (op, choice) in enumerate(zip(self.block_class.ops, self.edges.choices, strict=True)):
            while waiting and any(user == index for user, _ in waiting[0].users):
                self._convert(waiting.pop(0))
            made = local_op(self.block_class, op, choice, self.degree, self.load, balanced=self.balanced)
            references = enumerate(tensor_arguments(op))
            inputs = {reference: self._read(index, number, reference) for number, reference in references}
            place = len(self._ops)
            read = tuple(inputs[reference] for reference in op.inputs)
            saved = affine_sum((made.saved_bytes, *(self._copies(op, read, choice) if op.kept_again else ())))
            self._ops.append(replace(made, inputs=read, saved_bytes=saved))
            self._names |= {f"o{index}.{k}": f"o{place}.{k}" for k in range(len(op.outputs))}
            self._ops.extend(inner_ops(self.block_class, op, choice, self.degree, self.load))
        for found in waiting:
            self._convert(found)
        outputs = enumerate(self.block_class.outputs)
        return tuple(self._ops), tuple(self._read(LEAVES, number, reference) for number, reference in outputs)

    def _read(self, user: int, number: int, reference: str) -> str:
        """The name under which a user reads a value: of what it was converted to, or its own."""
        return self._converted.get((user, number)) or self._name(reference)

    def _copies(self, op: Op, inputs: tuple[str, ...], choice: Choice) -> Iterator[Affine]:
        """Bytes of what the op keeps that is a copy here, of a parameter or of what an earlier op kept."""
        windowed = any(one.local == "window" for _, one in strands(choice))
        few, more = (SampledCall.of(self.block_class, op, choice, self.degree, rows, self.load) for rows in (FEW, MORE))
        for number in op.kept_again:
            own, place = inputs[number], tensor_arguments(op).index(op.inputs[number])
            converted = own != self._name(op.inputs[number])
            if (windowed and place == 0) or (converted and own not in self._kept):
                self._kept.add(own)
                yield _line(*(sample.local.tensors[place].bytes for sample in (few, more)))

    def _convert(self, found: Conversion) -> None:
        name = self._name(found.reference)
        for step, made in conversion_ops(self.block_class.tensor(found.reference), found, self.degree):
            key = (found.reference, step.after)
            if key not in self._steps:
                self._ops.append(replace(made, inputs=(name,)))
                self._steps[key] = f"o{len(self._ops) - 1}.0"
            name = self._steps[key]
        self._converted |= dict.fromkeys(found.users, name)

    def _name(self, reference: str) -> str:
        return self._names.get(reference, reference)
