"""Dims that hold several things one after another: query, key and value of one product, gate and up projection.

Where such a dim is divided again, each rank wants its piece of every part (`Cut.parts`), and so does whatever makes it:

    addmm (n = query, key, value) --view--> split in 3 --> query cut, key cut, value cut
    cut n in 3 parts                cut in 3 parts

The tokens of all rows of the batch may lie in one dim, made of two by a reshape: cut, each rank has its piece of every
row's tokens (`Cut.every`), and ops that treat each token alike may as well be done on those:

    (rows, tokens, h) --view--> (rows * tokens, h) --addmm--> (rows * tokens, n) --view--> (rows, tokens, n)
    cut 1                       cut 0 in blocks of tokens     cut 0 in blocks              cut 1

`divided` gives the choices of ops that divide; `in_parts` those of ops whose cut dim may as well be cut in parts, since
they treat each index of it alike; `merged` and `in_blocks` the same of tokens in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from placer.rules.calls import Call
from placer.rules.cut_sizes import sizes_agree
from placer.rules.layouts import Choice, Cut, State
from placer.rules.patterns import integer

_DIVIDES = ("split", "split_with_sizes", "unsafe_split", "chunk", "unsafe_chunk")
_RESHAPES = ("view", "reshape", "_unsafe_view", "unflatten")


# More things than these do not lie in one dim on purpose; a batch does.
MOST = 8


def divided(call: Call) -> tuple[Choice, ...]:
    """The choice that cuts each of the equal parts into which the op divides a dim; none for most ops."""
    if not call.target.startswith("aten::") or not call.arguments or not call.outputs:
        return ()
    if call.name in _DIVIDES:
        return _split(call)
    return tuple(_reshaped(call)) if call.name in _RESHAPES else ()


def _split(call: Call) -> tuple[Choice, ...]:
    x = call.tensor(0).shape
    dim = integer(call.argument(2, "dim", 0)) % len(x)
    sizes = {out.shape[dim] for out in call.outputs}
    if len(sizes) > 1 or sizes == {1} or len(call.outputs) < 2:
        return ()
    made = State(Cut(dim), Cut(dim))
    local = "" if call.target.endswith("chunk") else "split"
    return (_parted(f"dim {dim}", dim, len(call.outputs), (made,) * len(call.outputs), local),)


def _reshaped(call: Call) -> Iterator[Choice]:
    """`(..., parts * heads * depth, ...)` seen as `(..., parts, heads, depth, ...)`: the second new dim is cut.

    Two new dims are heads and what is in them, which nobody wants in parts.
    """
    before, after = call.tensor(0).shape, call.outputs[0].shape
    new = len(after) - len(before) + 1
    for dim, size in enumerate(before):
        inside = after[dim : dim + new]
        alone = before[:dim] == after[:dim] and before[dim + 1 :] == after[dim + new :] and prod(inside) == size
        if new > 2 and alone and 1 < inside[0] <= MOST and inside[1] > 1:
            made = State(Cut(dim + 1), Cut(dim + 1))
            yield _parted(f"dim {dim + 1}", dim, inside[0], (made,), "sizes")


def _parted(name: str, dim: int, parts: int, outputs: tuple[State, ...], local: str) -> Choice:
    lay = Cut(dim, parts=parts)
    return Choice(name=f"{name} of {parts} parts", inputs=(State(lay, lay),), outputs=outputs, local=local)


def alike(call: Call, choice: Choice) -> bool:
    """Whether a choice cuts a dim of which the op treats every index alike, in pieces of the whole."""
    lays = [lay for _, lay in choice.cuts(call)]
    plain = choice.local in ("", "sizes") and not choice.inner and not choice.counts and not any(choice.halo)
    return bool(lays) and plain and sizes_agree(call, choice) and not any(lay.own or lay.parts > 1 for lay in lays)


def in_parts(call: Call, choice: Choice, parts: int) -> Choice | None:
    """`choice` with its dim cut in parts, where the op treats every index of the dim alike; None elsewhere."""
    if not alike(call, choice):
        return None
    return choice.relaid(f"{choice.name} in {parts} parts", lambda lay: lay._replace(parts=parts))


def merged(call: Call) -> tuple[Choice, ...]:
    """The choice of a reshape that puts the first two dims into one, or one into two, cut on the second of these."""
    if not call.target.startswith("aten::") or call.name not in _RESHAPES or not call.outputs:
        return ()
    before, after = call.tensor(0).shape, call.outputs[0].shape
    if _merges(before, after):
        return (_blocked("dims 0 and 1", before[1], (1, 0)),)
    return (_blocked("dim 1", after[1], (0, 1)),) if _merges(after, before) else ()


def _merges(apart: tuple[int, ...], together: tuple[int, ...]) -> bool:
    """Whether the first two of some dims are the first of the others, and the rest is the rest."""
    if len(apart) < 2 or not together or apart[0] == 1 or apart[1] == 1:
        return False
    return apart[0] * apart[1] == together[0] and prod(apart[2:]) == prod(together[1:])


def _blocked(name: str, every: int, dims: tuple[int, int]) -> Choice:
    one, other = (Cut(dim, every=every if dim == 0 else 0) for dim in dims)
    return Choice(
        name=f"{name} in blocks of {every}", inputs=(State(one, one),), outputs=(State(other, other),), local="sizes"
    )


def in_blocks(call: Call, choice: Choice, every: int) -> Choice | None:
    """`choice` with dim 0 cut in blocks, where the op treats each of its indices alike; None elsewhere."""
    counted = choice.local == "mean_loss" and sizes_agree(call, choice)
    if not (counted or alike(call, choice)) or any(lay.dim for _, lay in choice.cuts(call)):
        return None
    return choice.relaid(f"{choice.name} in blocks of {every}", lambda lay: lay._replace(every=every))
