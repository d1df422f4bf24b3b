"""Ops that move rows about without mixing them, beyond what their split rules tell: reshapes, row numbers, indexing.

Merged with dims before them, rows lie in as many parts as those dims have indices (`Cut.parts`):

    (tokens, rows, h) --view--> (tokens * rows, h)      cut 1 -> cut 0 in `tokens` parts
    (2 * rows, h)     --slice-> (rows, h)               cut 0 in 2 parts -> cut 0
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from placer.rules.calls import MARKED_ROWS, Call, Value
from placer.rules.families import indexing, pointwise, views
from placer.rules.layouts import WHOLE, Cut, Everywhere
from placer.rules.patterns import integer
from placer.rules.registry import split_rule
from placer.rules.rows.piece_values import RowNumbers, Standing, row_dims
from placer.rules.splits.own_orders import COPIES


def numbered(call: Call) -> RowNumbers | None:
    """The result of `arange(entries)`, `arange(0, entries, step)` where the entries are those of a dim with rows."""
    if split_rule(call) is not pointwise.arange or not row_dims(call.outputs[0].shape):
        return None
    numbers = [argument for argument in call.arguments if isinstance(argument, int)]
    start, end, step = numbers if len(numbers) == 3 else (*numbers, 1) if len(numbers) == 2 else (0, numbers[0], 1)
    even = start == 0 and end == call.outputs[0].shape[0] * step
    return RowNumbers(0, end, step) if even else None


def filled(call: Call) -> Cut | Everywhere | None:
    """The result of `new_zeros(like, sizes)` and its kin, which read nothing of what they are given."""
    if split_rule(call) is not pointwise.filled:
        return None
    dims = row_dims(call.outputs[0].shape)
    return Cut(dims[0]) if dims else WHOLE


def renumbers(call: Call, lays: Sequence[Standing]) -> RowNumbers | None:
    """Row numbers that the op hands on as they are (copies, casts, broadcasts, repeats), where they then lie."""
    first, rule = (lays[0] if lays else None), split_rule(call)
    copies = rule is views.expand or (rule in (pointwise.linear, pointwise.cast) and call.name in COPIES)
    dims = row_dims(call.outputs[0].shape)
    if rule is views.repeat and dims and isinstance(first, RowNumbers):
        copies = call.outputs[0].shape[dims[0]] == call.tensor(0).shape[first.dim]  # along other dims
    return RowNumbers(dims[0], first.of, first.step) if copies and isinstance(first, RowNumbers) and dims else None


def reshaped(call: Call, lay: Standing) -> Standing | None:
    """The result of a reshape of rows; None for other ops, and where rows do not stay apart."""
    if split_rule(call) is not views.reshape or not isinstance(lay, Cut | RowNumbers):
        return None
    before, after = call.tensor(0).shape, call.outputs[0].shape
    dims = row_dims(after)
    if len(dims) != 1 or (isinstance(lay, Cut) and (lay.own or lay.order)):
        return None
    parts = prod(before[: lay.dim]) * (lay.parts if isinstance(lay, Cut) else 1)
    parts, broken = divmod(parts, prod(after[: dims[0]]))
    if broken or not parts or (after[dims[0]] // parts) % MARKED_ROWS:
        return None
    if isinstance(lay, Cut):
        return Cut(dims[0], parts=parts)
    return RowNumbers(dims[0], lay.of, lay.step) if parts == 1 and before[lay.dim] == after[dims[0]] else None


def joined(call: Call, lays: Sequence[Standing]) -> Cut | None:
    """`cat([rows, rows])` along the rows, as siamese models do: the rows in so many parts."""
    if split_rule(call) is not views.cat or not lays:
        return None
    first, sizes = lays[0], {value.shape for value in call.tensors}
    plain = isinstance(first, Cut) and first == Cut(first.dim) and set(lays) == {first} and len(sizes) == 1
    dim = integer(call.argument(1, "dim", 0)) % len(call.outputs[0].shape)
    return Cut(dim, parts=len(lays)) if plain and isinstance(first, Cut) and first.dim == dim else None


def taken(call: Call, lays: Sequence[Standing]) -> Cut | None:
    """`both[:rows]`, `both[rows:]`, of rows in so many parts: those parts that are taken whole."""
    lay = lays[0] if lays else None
    if split_rule(call) is not views.slice_ or not isinstance(lay, Cut) or lay != Cut(lay.dim, parts=lay.parts):
        return None
    size = call.tensor(0).shape[lay.dim]
    if integer(call.argument(1, "dim", 0)) % len(call.tensor(0).shape) != lay.dim or size % lay.parts:
        return None
    start, second, step = call.argument(2, "start"), call.argument(3, "end"), integer(call.argument(4, "step", 1), 1)
    if call.name == "narrow":
        second = integer(second) + integer(start)  # its length
    first, end, step = slice(start, second, step).indices(size)
    part = size // lay.parts
    count, rest = divmod(end - first, part)
    whole = step == 1 and not rest and count > 0 and first % part == 0 and part % MARKED_ROWS == 0
    return Cut(lay.dim, parts=count) if whole else None


def repeated(call: Call, lays: Sequence[Standing]) -> Cut | None:
    """`rows.repeat(times, 1)`, the rows in so many parts; `whole.repeat(rows, 1)`, once for each row."""
    if split_rule(call) is not views.repeat:
        return None
    dims, before = row_dims(call.outputs[0].shape), call.tensor(0).shape
    lead = len(call.outputs[0].shape) - len(before)
    if len(dims) != 1 or lays[0] not in (WHOLE, Cut(dims[0] - lead)):
        return None
    if lays[0] is WHOLE:
        return Cut(dims[0])
    return Cut(dims[0], parts=call.outputs[0].shape[dims[0]] // before[dims[0] - lead])


def masked(call: Call, lays: Sequence[Standing]) -> Cut | None:
    """`x[mask] = number`, `x[mask] = vector`: each row by its own mask, of which all places are given the same;
    `x[:, mask] = values`: every row by one mask, its own values."""
    places = call.argument(1, "indices")
    if split_rule(call) is not indexing.index_put or not isinstance(places, tuple) or not isinstance(lays[0], Cut):
        return None
    mask = places[-1]
    if len(lays) != 3 or not isinstance(mask, Value) or mask.item_bytes != 1:
        return None
    return (_one_for_all if len(places) == 1 else _own_columns)(call, mask, len(places) - 1, lays)


def _one_for_all(call: Call, mask: Value, _: int, lays: Sequence[Standing]) -> Cut | None:
    """`x[mask] = vector`: where the vector, the same at all places, is not divided."""
    rows, x, given = lays[0], call.tensor(0).shape, call.tensors[2].shape
    assert isinstance(rows, Cut)
    behind, free = rows.dim - len(mask.shape), len(x) - len(mask.shape)
    same = all(size == 1 for size in given[: max(0, len(given) - free)])
    apart = behind < 0 or free - behind > len(given) or given[behind - free] == 1
    return rows if same and apart and lays[1] == (WHOLE if behind >= 0 else rows) and lays[2] is WHOLE else None


def _own_columns(call: Call, mask: Value, before: int, lays: Sequence[Standing]) -> Cut | None:
    """`x[:, mask] = values`: where the rows are among the dims before the mask's."""
    rows, shape = lays[0], call.tensors[-1].shape
    assert isinstance(rows, Cut)
    aligned = len(shape) == len(call.tensor(0).shape) - len(mask.shape) + 1
    own = lays[2] == rows == Cut(rows.dim) if aligned else lays[2] is WHOLE and not shape
    return rows if rows.dim < before and lays[1] is WHOLE and own else None


def indexed(call: Call, lays: Sequence[Standing]) -> Cut | None:
    """`x[row numbers, ...]`, `x[row numbers, ...] = values`: every row reads or writes its own."""
    rule = split_rule(call)
    if rule not in (indexing.index, indexing.index_put) or not isinstance(lays[0], Cut):
        return None
    places = call.argument(1, "indices")
    if not isinstance(places, tuple) or lays[0].dim >= len(places) or lays[0].parts > 1 or lays[0].own:
        return None
    tensors = [dim for dim, one in enumerate(places) if isinstance(one, Value)]
    if lays[0].dim not in tensors:
        return None
    own = lays[1 + tensors.index(lays[0].dim)]
    if not isinstance(own, RowNumbers) or own.step != 1 or own.of != call.tensor(0).shape[lays[0].dim]:
        return None
    # Other indices, and what is written, are the same for all rows, or each row's own.
    others = [lay for at, lay in enumerate(lays[1:]) if at >= len(tensors) or tensors[at] != lays[0].dim]
    if not all(lay is WHOLE or (isinstance(lay, Cut) and lay == Cut(lay.dim)) for lay in others):
        return None
    return Cut(row_dims(call.outputs[0].shape)[0])
