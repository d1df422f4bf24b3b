"""row_split(graph): from the inputs to the loss, what every op makes of a piece of the batch.

Blocks of one class whose inputs stand alike are looked at once. What does not lead to the loss or into a buffer is not
asked to keep rows apart.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from placer.graph import Block, BlockClass, Graph, Op
from placer.rules.calls import MARKED_ROWS, Call
from placer.rules.graph_calls import call_of, tensor_arguments, writes, writes_state
from placer.rules.layouts import PARTIAL, WHOLE, Cut
from placer.rules.opaque import TARGET
from placer.rules.registry import SPLITS, SplitRule, split_rule
from placer.rules.rows.draws import KEYED, drawn
from placer.rules.rows.piece_ops import SAME_OP, PieceOp, PieceResult, groups_of_rows, piece_result
from placer.rules.rows.piece_values import Mixed, PieceValue
from placer.rules.rows.row_rules import row_rule
from placer.rules.splits.own_orders import Facts, Orders, Sorted

_OPAQUE = TARGET.replace("::", ".")
Place = tuple[int, int]
# Ops whose whole numbers are sizes, or ends of what is taken: those of a piece follow its rows.
SIZED = frozenset(
    (
        "view", "reshape", "_unsafe_view", "expand", "flatten", "unflatten", "repeat", "tile", "repeat_interleave",
        "broadcast_to", "zeros", "ones", "full", "empty", "rand", "randn", "randint", "normal", "new_zeros",
        "new_ones", "new_full", "new_empty", "arange", "linspace", "slice", "narrow", "split", "split_with_sizes",
        "chunk", "eye", "resize", "as_strided", "sym_size", "slice_scatter", "constant_pad_nd",
        "affine_grid_generator",
    )
)  # fmt: skip
# The block of a sort while its own block is walked through.
HERE = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSplit:
    """What pieces of the batch do otherwise than the whole, by (block, number of the op); the prologue is block -1.

    why: why the batch must stay whole; empty where every piece's loss is its part of the sum. statistics: the batch
    norms that take the mean and variance of the rows at hand, by name and line.
    """

    ops: Mapping[Place, PieceOp] = field(default_factory=dict)
    why: str = ""
    statistics: tuple[str, ...] = ()


def row_split(graph: Graph) -> RowSplit:
    """How the batch of `graph` may be cut into rows. The same for the same graph and rules."""
    for known, rules, found in _KNOWN:
        if known is graph and rules == SPLITS:
            return found
    _KNOWN.append((graph, dict(SPLITS), _Walk(graph).done()))
    return _KNOWN[-1][2]


# What was asked for last, with the rules that were registered then.
_KNOWN: deque[tuple[Graph, dict[str, SplitRule], RowSplit]] = deque(maxlen=8)


def whole_batch_reason(graph: Graph, *, statistics: bool) -> str:
    """Why the batch may not be cut into replicas or microbatches; empty where it may.

    statistics: whether batch norms may take those of the rows at hand.
    """
    if graph.loss.reduction in ("none", "other"):
        return graph.loss.why or "the model returns no loss"
    found = row_split(graph)
    if found.why or statistics or not found.statistics:
        return found.why
    return (
        f"{found.statistics[0]} takes the mean and variance of the whole batch; batch_norm=microbatch lets each piece "
        "take its own, as data-parallel training does elsewhere, which changes the result"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassRows:
    """A block class on a piece: the results that leave it, what its ops do otherwise, what is written to buffers."""

    outputs: tuple[PieceValue, ...]
    orders: Orders
    ops: Mapping[int, PieceOp]
    written: tuple[Mixed, ...]
    statistics: tuple[str, ...]


class _Walk:
    """Through the blocks of a graph in order."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._values = {f"x:{entry.name}": _input(entry.tensor.batched) for entry in graph.inputs}
        self._sorts: dict[str, Sorted | None] = {}
        self._classes: dict[tuple[int, tuple[PieceValue, ...], Facts, tuple[bool, ...]], _ClassRows] = {}
        self._written = _written(graph)

    def done(self) -> RowSplit:
        """The whole graph."""
        ops: dict[Place, PieceOp] = {}
        written: list[Mixed] = []
        statistics: dict[str, None] = {}
        for index, block in ((-1, self._graph.prologue), *enumerate(self._graph.blocks)):
            found = self._block(index, block)
            ops.update({(index, number): op for number, op in found.ops.items()})
            written += found.written
            statistics.update(dict.fromkeys(found.statistics))
        why = written[0].why if written else self._of_loss()
        return RowSplit(ops={} if why else ops, why=why, statistics=tuple(statistics))

    def _block(self, index: int, block: Block) -> _ClassRows:
        given = tuple(self._values[reference] for reference in block.inputs)
        sorts = tuple(self._sorts.get(reference) for reference in block.inputs)
        kept = tuple(name not in self._written for name in block.parameters)
        key = (block.kind, given, sorts, kept)
        if key not in self._classes:
            self._classes[key] = _class_rows(self._graph.classes[block.kind], given, sorts, kept)
        found = self._classes[key]
        left = found.orders.left(self._graph.classes[block.kind].outputs, index)
        self._sorts.update({f"b{index}.{at}": one for at, one in enumerate(left)})
        self._values.update({f"b{index}.{at}": value for at, value in enumerate(found.outputs)})
        return found

    def _of_loss(self) -> str:
        value, loss = self._values.get(self._graph.loss.value), self._graph.loss
        stated = value is not None and loss.reduction == "mean" and value.lay in (Cut(0), WHOLE)
        if value is None or value.lay is PARTIAL or stated:
            return ""
        if isinstance(value.lay, Mixed):
            return value.lay.why
        return "the loss is no sum over the rows of the batch"


def _input(batched: bool) -> PieceValue:
    return PieceValue(Cut(0) if batched else WHOLE, True)


def _written(graph: Graph) -> frozenset[str]:
    """The buffers that some op writes: their values are not known before the step."""
    return frozenset(
        block.parameters[int(op.inputs[0][1:])]
        for block in (graph.prologue, *graph.blocks)
        for op in graph.classes[block.kind].ops
        if writes_state(graph.classes[block.kind], op)
    )


def _class_rows(
    block_class: BlockClass, given: tuple[PieceValue, ...], sorts: Facts, kept: tuple[bool, ...]
) -> _ClassRows:
    """kept: of each parameter and buffer whether nothing writes it."""
    values = {f"i{at}": value for at, value in enumerate(given)}
    orders = Orders(block=HERE, known={f"i{at}": one for at, one in enumerate(sorts)})
    state = zip(block_class.parameters, kept, strict=True)
    values.update({f"p{at}": PieceValue(WHOLE, one.buffer and same) for at, (one, same) in enumerate(state)})
    ops: dict[int, PieceOp] = {}
    written: list[Mixed] = []
    statistics: list[str] = []
    for number, op in enumerate(block_class.ops):
        taken = [values[reference] for reference in tensor_arguments(op)]
        found = _op_rows(block_class, op, taken, orders, number)
        values.update({f"o{number}.{at}": value for at, value in enumerate(found.values)})
        if found.op != SAME_OP:
            ops[number] = found.op
        if found.op.statistics:
            statistics.append(_place(op))
        if writes_state(block_class, op):
            written += [value.lay for value in found.values if isinstance(value.lay, Mixed)]
            written += [
                Mixed(_told(op, "writes a buffer from the rows at hand")) for one in found.values if _varies(one)
            ]
    outputs = tuple(values[reference] for reference in block_class.outputs)
    return _ClassRows(outputs=outputs, orders=orders, ops=ops, written=tuple(written), statistics=tuple(statistics))


def _op_rows(block_class: BlockClass, op: Op, given: list[PieceValue], orders: Orders, number: int) -> PieceResult:
    if op.target.startswith(_OPAQUE) or (op.inputs and not op.arguments):
        return _opaque_rows(op, given)
    call = call_of(block_class, op, MARKED_ROWS)
    uneven = _uneven(op, call)
    if uneven and not any(isinstance(value.lay, Mixed) for value in given):
        return PieceResult(values=tuple(PieceValue(Mixed(_told(op, uneven))) for _ in op.outputs))
    sorted_rows = orders.follow(op, call, number)
    if op.target in KEYED or (op.kind == "random" and split_rule(call) is None and row_rule(call) is None):
        return _drawn_rows(op, given)
    repeatable = op.kind != "random" and "global_rows" not in op.arguments and not writes(op)
    found = piece_result(call, given, repeatable=repeatable, sorted_rows=sorted_rows)
    before = {value.lay for value in given}
    values = tuple(
        PieceValue(Mixed(_told(op, value.lay.why)))
        if isinstance(value.lay, Mixed) and value.lay not in before
        else value
        for value in found.values
    )
    return PieceResult(values=values, op=found.op)


def _uneven(op: Op, call: Call) -> str:
    """Why a piece that counts its own rows has something else than the batch: a size of rows and some more, or their
    number where it is no size; "" where neither is so."""
    if any(size.per_row and size.fixed for out in op.outputs for size in out.shape):
        return "has some more or fewer numbers than a multiple of the rows"
    counted = 0 if op.target.split(".")[1].rstrip("_") in SIZED else len(re.findall(r"\brows\b", op.arguments))
    if counted and not (counted == 1 and groups_of_rows(call)):
        return "takes the number of rows for a place or a count, and a piece has fewer"
    return ""


def _drawn_rows(op: Op, given: list[PieceValue]) -> PieceResult:
    """A draw of random numbers that a run keys by rows, or that no piece can have."""
    mixed = next((value.lay for value in given if isinstance(value.lay, Mixed)), None)
    shape = tuple(size.at(MARKED_ROWS) for size in op.outputs[0].shape)
    lay = drawn(op.target, shape, [value.lay for value in given])
    other = Mixed(_told(op, "draws random numbers for the whole batch, of which a piece would draw others"))
    known = mixed is None and lay is not None and all(value.given for value in given)
    return PieceResult(values=tuple(PieceValue(mixed or lay or other, known) for _ in op.outputs))


def _opaque_rows(op: Op, given: list[PieceValue]) -> PieceResult:
    """Whether a part that nobody looks into keeps rows apart was said when it was captured (`Loss.why`).

    So it is of ops without arguments, which only graphs made by hand have: a run looks at the model's own.
    """
    mixed = next((value.lay for value in given if isinstance(value.lay, Mixed)), None)
    if mixed is not None:
        return PieceResult(values=tuple(PieceValue(mixed) for _ in op.outputs))
    if any(value.lay not in (WHOLE, Cut(0)) for value in given):
        why = Mixed(_told(op, "is opaque, and its rows are not in dim 0"))
        return PieceResult(values=tuple(PieceValue(why) for _ in op.outputs))
    mixing = Mixed(_told(op, "is opaque, and gives a number without rows of what has rows: a piece would give its own"))
    taken = op.target.startswith(_OPAQUE) and any(value.lay == Cut(0) for value in given)
    without = PieceValue(mixing if taken else WHOLE)
    return PieceResult(values=tuple(PieceValue(Cut(0)) if out.batched else without for out in op.outputs))


def _varies(value: PieceValue) -> bool:
    return value.lay is not WHOLE and not isinstance(value.lay, Mixed)


def _place(op: Op) -> str:
    return f"{op.target} at {op.source or op.module or op.name}"


def _told(op: Op, why: str) -> str:
    return f"{_place(op)} {why}"
