"""Experts: products of rows sorted by expert, and the routing around them.

Routing sorts the rows of the whole batch by expert. A rank that has its piece only sorts that: its rows are then
in an order of its own (`Cut(0, own=True)`), its indices count from its own first row, and its counts per expert
are a summand of the whole's. Where the order is undone the result is the piece of the whole again:

    rows --sort--> own indices;  x --index by them--> own rows --products--> own rows --index by their inverse--> rows

Rows may stay at the ranks of their experts between two products, which are then sent there and back once:

    own rows --product, to experts--> at experts --pointwise--> at experts --product, from experts--> own rows

Own layouts have a meaning only within such a region, which is what is tested; nothing converts from or to them.
"""

from __future__ import annotations

from dataclasses import replace

from placer.rules.calls import MARKED_ROWS, Call, Value, Work, gradients
from placer.rules.layouts import OWNED, SHARED, SUMMED, Choice, Cut, Inner, State, cut
from placer.rules.patterns import Pattern, named_dims, numbered, pattern_choices, uncut

_ROWS = cut(0, own=True)
# Where a number for each expert is: in the offsets.
_COUNTS = ((2, 0),)
_SENT = State(Cut(0, own=True, sent=True), Cut(0, own=True, sent=True))


def grouped_product_work(call: Call) -> Work:
    """`grouped_mm(x, w, offsets)`: 2 * rows * k * n FLOPs whatever the routing.

    As many equal products as experts where they divide the rows (balanced routing), else one.
    """
    x, w = call.tensor(0), call.tensor(1)
    experts = w.shape[0]
    tokens, k = x.shape[-2], x.shape[-1]
    n = w.elements // experts // k
    groups = experts if tokens % experts == 0 else 1
    return gradients(x, w, batch=groups, m=tokens // groups, n=n, k=k)


def grouped_product(call: Call) -> tuple[Choice, ...]:
    """`grouped_mm(x, w, offsets)`: x (rows, k) sorted by expert, w (experts, k, n), offsets (experts).

    With experts cut every rank has all rows and computes those of its experts, the others are zero. Its FLOPs and rows
    read are those of balanced routing.
    """
    x, w = call.tensor(0), call.tensor(1)
    if len(x.shape) != 2 or len(w.shape) != 3:
        return ()
    inputs = (named_dims(x.shape, "", "k"), named_dims(w.shape, "experts", "k", "n"))
    outputs = (("", inputs[1][2]),)
    pattern = Pattern(inputs=(*inputs, *uncut(call.tensors[2:])), outputs=outputs, summed=("k", "experts"))
    return pattern_choices(pattern, local="experts", at=("experts",))


def histogram(call: Call) -> tuple[Choice, ...]:
    """`histc(x, bins, min, max)` between given bounds: the counts of pieces add up."""
    if not _bounded(call):
        return ()
    labels = numbered(call.tensor(0).shape)
    return pattern_choices(Pattern(inputs=(labels,), outputs=(("",),), summed=tuple(filter(None, labels))))


def own_product(call: Call) -> tuple[Choice, ...]:
    """`grouped_mm` of own rows: by all experts, or, with experts cut, sent to their ranks, sent back, or both."""
    x, w = call.tensor(0), call.tensor(1)
    if len(x.shape) != 2 or len(w.shape) != 3 or len(call.tensors) != 3:
        return ()
    everywhere = Choice(name="own rows", inputs=(_ROWS, SHARED, OWNED), outputs=(_ROWS,))
    k, n = (1, 1), (1, 2)
    return (
        everywhere,
        _apart("own rows, experts apart", "experts_apart", (_ROWS, _ROWS), (k, n)),
        _apart("own rows, to experts", "experts_to", (_ROWS, _SENT), (k,)),
        _apart("at experts", "experts_at", (_SENT, _SENT), ()),
        _apart("own rows, from experts", "experts_from", (_SENT, _ROWS), (n,)),
    )


def _apart(name: str, local: str, rows: tuple[State, State], widths: tuple[tuple[int, int], ...]) -> Choice:
    """A product with experts cut: its rows before and after, and how wide those are that are sent, forward and back.

    Whatever is sent, ranks tell each other first how much of it comes.
    """
    exchanges = ((False, ()), *((backward, (width,)) for backward in (False, True) for width in widths))
    sent = tuple(
        Inner(collective="all_to_all", backward=backward, sizes=sizes)
        for backward, width in exchanges
        for sizes in (_COUNTS, ((0, 0), *width) if width else _COUNTS)
    )
    return Choice(name=name, inputs=(rows[0], cut(0), OWNED), outputs=(rows[1],), local=local, inner=sent)


def own_sort(call: Call) -> tuple[Choice, ...]:
    """`sort(x)` of one dim: each rank sorts its piece."""
    if len(call.tensor(0).shape) != 1:
        return ()
    return (Choice(name="own order", inputs=(cut(0),), outputs=(_ROWS,) * len(call.outputs)),)


def own_histogram(call: Call) -> tuple[Choice, ...]:
    """`histc` of own rows: the counts of the ranks add up."""
    if len(call.tensor(0).shape) != 1 or not _bounded(call):
        return ()
    return (Choice(name="own rows", inputs=(_ROWS,), outputs=(OWNED,)),)


def _bounded(call: Call) -> bool:
    return len(call.arguments) == 4 and call.arguments[2] != call.arguments[3]


def own_index(call: Call) -> tuple[Choice, ...]:
    """`index(x, [own indices])`: rows of the rank's piece in its own order, or own rows put back into theirs; of what
    has no rows, as the biases of experts, what belongs to each own row. Which it is, MARKED_ROWS rows tell."""
    indices = call.argument(1, "indices")
    shapes = [len(value.shape) for value in call.tensors[1:]]
    if not isinstance(indices, tuple) or len(indices) != 1 or shapes != [1]:
        return ()
    size, order = (value.shape[0] for value in call.tensors)
    table = (Choice(name="of own rows", inputs=(SHARED, _ROWS), outputs=(_ROWS,)),)
    rows = (
        Choice(name="to own order", inputs=(cut(0), _ROWS), outputs=(_ROWS,)),
        Choice(name="from own order", inputs=(_ROWS, _ROWS), outputs=(cut(0),)),
    )
    if order % MARKED_ROWS:
        return (*rows, *table)
    return table if size % MARKED_ROWS else rows


def own_index_put(call: Call) -> tuple[Choice, ...]:
    """`index_put(x, [own indices], row numbers)`, the inverse of an order: a rank numbers its rows from its first."""
    values = call.argument(2, "values")
    if len(call.tensors) != 3 or not isinstance(values, Value) or values.requires_grad or len(values.shape) != 1:
        return ()
    return (Choice(name="own order", inputs=(_ROWS, _ROWS, cut(0)), outputs=(_ROWS,), local="own_numbers"),)


def own_rows(call: Call, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """The choices that cut dim 0 of whatever they cut, on own rows instead; an op of one tensor on an own one."""
    alone = Choice(name="own", inputs=(OWNED,), outputs=(OWNED,))
    kept = (alone,) if len(call.tensors) == 1 and len(call.outputs) == 1 else ()
    if call.target == "aten::type_as" and call.tensors[1].shape:
        # Counts take the type of the rows that were counted.
        kept = (replace(alone, inputs=(OWNED, _ROWS)),)
    rows = [choice for choice in choices if _first_dim(choice)]
    # How many rows came is not known beforehand, so that an op may not be told sizes.
    sent = (_owned(choice, _SENT, "at experts") for choice in rows if not choice.local)
    return (*(_owned(choice, _ROWS, "own order") for choice in rows), *sent, *kept)


def _first_dim(choice: Choice) -> bool:
    lays = [state.value for state in (*choice.inputs, *choice.outputs) if isinstance(state.value, Cut)]
    inputs = any(isinstance(state.value, Cut) for state in choice.inputs)
    plain = choice.local in ("", "sizes") and not choice.inner and not choice.halo
    return inputs and plain and all(lay.dim == 0 for lay in lays) and SUMMED not in choice.outputs


def _owned(choice: Choice, rows: State, how: str) -> Choice:
    return choice.relaid(f"{choice.name}, {how}", lambda lay: rows.value)
