"""Gathers and scatters: the dims of the indices, and those not indexed; tables cut by rows give partial sums."""

from __future__ import annotations

from placer.rules.calls import Call, Value
from placer.rules.layouts import SAME, SHARED, Choice, cut
from placer.rules.patterns import (
    Labels,
    Pattern,
    along,
    divisible,
    integer,
    named_dims,
    numbered,
    partial,
    pattern_choices,
    without,
)

# Of an embedding bag: sum, mean, max.
MAX = 2


def embedding(call: Call) -> tuple[Choice, ...]:
    """`embedding(weight, ids)`: ids, the hidden dim, or the vocabulary, where ids of other ranks give zero rows."""
    weight, ids = call.tensor(0), call.tensor(1)
    if call.argument(3, "scale_grad_by_freq", False) is True:
        # A gradient is divided by how often its row is read, which no piece of the ids tells.
        return ()
    table = named_dims(weight.shape, "vocabulary", "hidden")
    places = numbered(ids.shape)
    pattern = Pattern(inputs=(table, places), outputs=((*places, table[1]),), summed=("vocabulary",))
    return pattern_choices(pattern, local="vocabulary", at=("vocabulary",))


def embedding_bag(call: Call) -> tuple[Choice, ...]:
    """`embedding_bag(table, ids, offsets, scale_grad_by_freq, mode, sparse, weights)`: the columns of the table.

    Weights of the ids count in all columns, so that their gradients are partial; which ids are largest (mode 2, the
    fourth result) is told column by column.
    """
    table, *others = call.tensors
    if len(table.shape) != 2 or table.shape[1] == 1:
        return ()
    largest = cut(1) if integer(call.argument(4, "mode")) == MAX else SAME
    inputs = (cut(1), SAME, SAME, *(SHARED for _ in others[2:]))
    return (Choice(name="hidden", inputs=inputs, outputs=(cut(1), SAME, SAME, largest)),)


def index_select(call: Call) -> tuple[Choice, ...]:
    """`index_select(x, dim, index)`: the index, or the other dims; linear in x."""
    x, ids = call.tensor(0), call.tensor(2)
    labels = numbered(x.shape)
    dim = integer(call.argument(1, "dim")) % len(labels)
    place = "index" if ids.elements != 1 else ""
    kept = without(labels, dim)
    result = (*kept[:dim], place, *kept[dim + 1 :])
    choices = pattern_choices(Pattern(inputs=(kept, (place,) * len(ids.shape)), outputs=(result,)))
    return (*choices, partial(call, frozenset({0})))


def index(call: Call) -> tuple[Choice, ...]:
    """`index(x, indices)`: the dims of the indices, and dims of x that have none. Masks have no rule."""
    pattern = _indexed(call)
    if pattern is None:
        return ()
    return (*pattern_choices(pattern), partial(call, frozenset({0})))


def index_put(call: Call) -> tuple[Choice, ...]:
    """`index_put(x, indices, values, accumulate)`: dims of x that have no index; added values also by their indices."""
    found = _indexed(call)
    values = call.argument(2, "values")
    if found is None or not isinstance(values, Value):
        return ()
    gathered = found.outputs[0]
    given = gathered[len(gathered) - len(values.shape) :]
    placed = divisible(given, values.shape)
    free = {label for label in found.inputs[0] if label}
    adds = call.argument(3, "accumulate", False) is True
    inner = tuple(label for label in gathered if label and label not in free)
    summed = inner if adds else ()
    inputs = (*found.inputs, placed)
    return pattern_choices(Pattern(inputs=inputs, outputs=found.inputs[:1], summed=summed, added=frozenset({0})))


def _indexed(call: Call) -> Pattern | None:
    x, indices = call.tensor(0), call.argument(1, "indices")
    places = indices if isinstance(indices, tuple) else ()
    given = [(dim, one) for dim, one in enumerate(places) if isinstance(one, Value)]
    if not given or any(one.item_bytes == 1 for _, one in given):
        return None
    rank = max(len(one.shape) for _, one in given)
    labels = numbered(x.shape)
    dims = [dim for dim, _ in given]
    kept = without(labels, *dims)
    shape = [1] * rank
    for _, one in given:
        for at, size in enumerate(one.shape):
            shape[rank - len(one.shape) + at] = max(shape[rank - len(one.shape) + at], size)
    block = divisible((f"index {at}" for at in range(rank)), tuple(shape))
    inputs = tuple(divisible(block[rank - len(one.shape) :], one.shape) for _, one in given)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    at = dims[0] if adjacent else 0
    rest = [label for dim, label in enumerate(kept) if dim not in dims]
    return Pattern(inputs=(kept, *inputs), outputs=((*rest[:at], *block, *rest[at:]),))


def gather(call: Call) -> tuple[Choice, ...]:
    """`gather(x, dim, index)`: the index along dim, other dims where x and the index have the same size."""
    x, ids = call.tensor(0), call.tensor(2)
    if not x.shape:
        return ()
    dim = integer(call.argument(1, "dim")) % len(x.shape)
    common = _common(x.shape, ids.shape, dim)
    own = "index" if ids.shape[dim] != 1 else ""
    places = (*common[:dim], own, *common[dim + 1 :])
    return (*pattern_choices(Pattern(inputs=(common, places), outputs=(places,))), partial(call, frozenset({0})))


def scatter(call: Call) -> tuple[Choice, ...]:
    """`scatter(x, dim, index, source)`, `scatter_add`, `scatter_reduce`: dims other than dim where all have the
    same size.

    What is added also by its place along dim: the source is cut, x enters in shares.
    """
    x, ids = call.tensor(0), call.tensor(2)
    if not x.shape or any(source.shape != ids.shape for source in call.tensors[2:]):
        return ()
    dim = integer(call.argument(1, "dim")) % len(x.shape)
    common = _common(x.shape, ids.shape, dim)
    choices = pattern_choices(Pattern(inputs=(common,) * len(call.tensors), outputs=(common,)))
    if "scatter_add" not in call.target or ids.shape[dim] == 1:
        return choices
    places = (*common[:dim], "index", *common[dim + 1 :])
    adding = Pattern(inputs=(common, places, places), outputs=(common,), summed=("index",), added=frozenset({0}))
    return (*choices, along(adding, "index"), partial(call, frozenset({0, 2})))


def _common(x: tuple[int, ...], ids: tuple[int, ...], dim: int) -> Labels:
    return tuple(
        f"dim {at}" if at != dim and a == b and a != 1 else "" for at, (a, b) in enumerate(zip(x, ids, strict=True))
    )
