"""The ops of a split block class as one rank runs them: local sizes by the rules, conversions where they are needed.

FLOPs and matrix products follow from the rule of the local call. Bytes read and written scale with the bytes of the
op's local tensors; saved bytes with those of its tensors that account for them exactly, else with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil

from placer.errors import UsageError
from placer.graph import Affine, BlockClass, Op, Parameter, Product, Tensor
from placer.rules import Call, MatrixProduct, Value, Work, call_of, rule_for, tensor_arguments
from placer.rules.layouts import Choice, Cut, LocalOp, conversion, inner_bytes, piece
from placer.rules.splits import filled, localise, tensors
from placer.splitting.edges import LEAVES, Conversion, Edges
from placer.splitting.holding import held_value

# Row counts at which a local call is looked at; sizes are affine in rows.
FEW, MORE = 4, 5
NOTHING = "-"
# Rows at loaded experts are counted in so many: 16 bytes of bfloat16, as products like them (`placer.tiles`).
EVEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An op of `rows` rows, whole and on one rank."""

    rows: int
    whole: Call
    local: Call

    @staticmethod
    def of(kind: BlockClass, op: Op, choice: Choice, degree: int, rows: int, load: float = 1.0) -> Sample:
        """The op of a class as its choice says; at experts `load` times their even share of the rows."""
        whole = call_of(kind, op, rows)
        made = localise(whole, choice, degree, middle(degree))
        local = made.call if isinstance(made, LocalOp) else made
        return Sample(rows=rows, whole=whole, local=local if load == 1.0 else loaded(local, choice, load))

    @property
    def work(self) -> Work:
        """What the rank computes."""
        rule = rule_for(self.whole.target)
        return Work() if rule is None else rule(self.local)


def local_op(kind: BlockClass, op: Op, choice: Choice, degree: int, load: float = 1.0) -> Op:
    """The op one rank runs, its inputs still named as in the whole class; at experts `load` times their even share."""
    if choice.name == "whole":
        return op
    few, more = (Sample.of(kind, op, choice, degree, rows, load) for rows in (FEW, MORE))
    read, written = _share(tensors(few.local), tensors(few.whole)), _share(few.local.outputs, few.whole.outputs)
    both = _share((*tensors(few.local), *few.local.outputs), (*tensors(few.whole), *few.whole.outputs))
    saved = _saved_share(op, few, both)
    return replace(
        op,
        outputs=tuple(
            replace(tensor, shape=tuple(map(_line, a.shape, b.shape)))
            for tensor, a, b in zip(op.outputs, few.local.outputs, more.local.outputs, strict=True)
        ),
        forward_flops=_line(few.work.forward_flops, more.work.forward_flops),
        backward_flops=_line(few.work.backward_flops, more.work.backward_flops),
        read_bytes=_scaled(op.read_bytes, read),
        written_bytes=_scaled(op.written_bytes, written),
        backward_read_bytes=_scaled(op.backward_read_bytes, both),
        backward_written_bytes=_scaled(op.backward_written_bytes, read),
        saved_bytes=_scaled(op.saved_bytes, saved),
        fused_saved_bytes=_scaled(op.fused_saved_bytes, saved),
        products=tuple(map(_product, few.work.forward, more.work.forward)),
        backward_products=tuple(map(_product, few.work.backward, more.work.backward)),
    )


def loaded(local: Call, choice: Choice, load: float) -> Call:
    """The call of a rank that has `load` times as many of the rows that lie at experts, or are computed there."""
    at_experts = [isinstance(state.value, Cut) and state.value.sent for state in choice.inputs]
    if choice.local.startswith("experts"):
        at_experts[0] = True
    grown = iter([_grown(value, load) if at else value for value, at in zip(tensors(local), at_experts, strict=True)])
    sent = (isinstance(state.value, Cut) and state.value.sent for state in choice.outputs)
    return replace(
        local,
        arguments=tuple(filled(argument, grown) for argument in local.arguments),
        keywords=tuple((name, filled(argument, grown)) for name, argument in local.keywords),
        outputs=tuple(_grown(value, load) if at else value for value, at in zip(local.outputs, sent, strict=True)),
    )


def _grown(value: Value, load: float) -> Value:
    # Loads are averages: a number of rows that no kernel likes follows from none.
    return value._replace(shape=(ceil(value.shape[0] * load / EVEN) * EVEN, *value.shape[1:]))


def conversion_op(tensor: Tensor | Parameter, found: Conversion, degree: int) -> Op:
    """What turns a value of the whole shape `tensor` from one state into another. UsageError where nothing does."""
    value = _value(tensor)
    forward = conversion(found.have.value, found.want.value)
    backward = conversion(found.want.gradient, found.have.gradient) if value.requires_grad else ""
    if "none" in (forward, backward):
        raise UsageError(f"{found.reference} lies as {found.have} and is wanted as {found.want}: there is no way")
    size = _bytes(value)
    return Op(
        name=f"convert {found.reference}",
        target=f"placer.{forward or NOTHING}.{backward or NOTHING}",
        kind="communication",
        inputs=(found.reference,),
        outputs=(held_value(value, found.want, degree, middle(degree)),),
        written_bytes=size if forward else Affine(),
        backward_written_bytes=size if backward else Affine(),
    )


def inner_ops(kind: BlockClass, op: Op, choice: Choice, degree: int, load: float = 1.0) -> Iterator[Op]:
    """What an op communicates inside itself: collectives of its choice, rows of its neighbours."""
    for inner in choice.inner:
        samples = (Sample.of(kind, op, choice, degree, rows, load) for rows in (FEW, MORE))
        sizes = [inner_bytes(inner, tensors(sample.local)) for sample in samples]
        moved = _line(*sizes)
        words = (NOTHING, inner.collective) if inner.backward else (inner.collective, NOTHING)
        yield _moving(op, words, moved if not inner.backward else Affine(), moved if inner.backward else Affine())
    if any(choice.halo):
        sizes = [_halo_bytes(Sample.of(kind, op, choice, degree, rows), choice, degree) for rows in (FEW, MORE)]
        moved = _line(*sizes)
        yield _moving(op, ("exchange", "exchange"), moved, moved)


def _moving(op: Op, words: tuple[str, str], forward: Affine, backward: Affine) -> Op:
    return Op(
        name=f"inside {op.name}", target=f"placer.{words[0]}.{words[1]}", kind="communication",
        written_bytes=forward, backward_written_bytes=backward,
    )  # fmt: skip


def _halo_bytes(sample: Sample, choice: Choice, degree: int) -> int:
    """Bytes a rank in the middle gets of its neighbours."""
    total = 0
    for halo, local, whole in zip(choice.halo, tensors(sample.local), tensors(sample.whole), strict=True):
        if halo is not None:
            start, end = piece(whole.shape[halo.dim], degree, middle(degree))
            foreign = max(0, local.shape[halo.dim] - (end - start))
            total += foreign * local.item_bytes * local.elements // max(1, local.shape[halo.dim])
    return total


def _share(local: Sequence[Value], whole: Sequence[Value]) -> float:
    total = sum(value.elements * value.item_bytes for value in whole)
    return sum(value.elements * value.item_bytes for value in local) / total if total else 1.0


def _saved_share(op: Op, sample: Sample, otherwise: float) -> float:
    """The share of what the op keeps: that of the fewest of its tensors that add up to it, else of all."""
    kept = op.saved_bytes.at(sample.rows)
    whole = [*tensors(sample.whole), *sample.whole.outputs]
    local = [*tensors(sample.local), *sample.local.outputs]
    for count in (1, 2, 3):
        for chosen in combinations(range(len(whole)), count):
            if kept and sum(whole[i].elements * whole[i].item_bytes for i in chosen) == kept:
                return _share([local[i] for i in chosen], [whole[i] for i in chosen])
    return otherwise


def _line(few: int, more: int) -> Affine:
    per_row = (more - few) // (MORE - FEW)
    return Affine(few - per_row * FEW, per_row)


def _product(few: MatrixProduct, more: MatrixProduct) -> Product:
    batch, m, n, k = map(_line, few, more)
    return Product(batch=batch, m=m, n=n, k=k)


def _scaled(size: Affine, share: float) -> Affine:
    return Affine(round(size.fixed * share), round(size.per_row * share))


def _value(tensor: Tensor | Parameter) -> Tensor:
    if isinstance(tensor, Tensor):
        return tensor
    shape = tuple(Affine(size) for size in tensor.shape)
    return Tensor(shape=shape, dtype=tensor.dtype, requires_grad=tensor.trainable and not tensor.buffer)


def _bytes(tensor: Tensor) -> Affine:
    return _line(tensor.bytes_at(FEW), tensor.bytes_at(MORE))


def middle(degree: int) -> int:
    """The rank whose pieces stand for all."""
    return degree // 2


@dataclass
class LocalClass:
    """The ops of a split class in order, conversions before their first user; `outputs` as the class names them."""

    kind: BlockClass
    edges: Edges
    degree: int
    load: float = 1.0
    _ops: list[Op] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)
    _converted: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def ops(self) -> tuple[Op, ...]:
        """Every op of the rank."""
        self._make()
        return tuple(self._ops)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The values that leave the block."""
        self._make()
        return tuple(
            self._converted.get((LEAVES, number)) or self._name(reference)
            for number, reference in enumerate(self.kind.outputs)
        )

    def _make(self) -> None:
        if self._ops:
            return
        waiting = list(self.edges.conversions)
        for index, (op, choice) in enumerate(zip(self.kind.ops, self.edges.choices, strict=True)):
            while waiting and any(user == index for user, _ in waiting[0].users):
                self._convert(waiting.pop(0))
            made = local_op(self.kind, op, choice, self.degree, self.load)
            inputs = {
                reference: self._converted.get((index, number)) or self._name(reference)
                for number, reference in enumerate(tensor_arguments(op))
            }
            place = len(self._ops)
            self._ops.append(replace(made, inputs=tuple(inputs[reference] for reference in op.inputs)))
            self._names |= {f"o{index}.{k}": f"o{place}.{k}" for k in range(len(op.outputs))}
            self._ops.extend(inner_ops(self.kind, op, choice, self.degree, self.load))
        for found in waiting:
            self._convert(found)

    def _convert(self, found: Conversion) -> None:
        made = conversion_op(self.kind.tensor(found.reference), found, self.degree)
        name = f"o{len(self._ops)}.0"
        self._ops.append(replace(made, inputs=(self._name(found.reference),)))
        self._converted |= dict.fromkeys(found.users, name)

    def _name(self, reference: str) -> str:
        return self._names.get(reference, reference)
