"""The ops of a rank that are more than the op on smaller tensors: for each name of `Choice.local` how it is made.

Some are told other sizes; others are a `LocalOp`, which the runtime has a function for, and which says where the rank
stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from placer.rules.calls import Argument, Call
from placer.rules.cut_sizes import result_dim, window_rows
from placer.rules.layouts import Choice, Cut, Halo, LocalOp, Rows, piece
from placer.rules.patterns import broadcast

# Ops that are told the sizes of their result, and at which argument.
SIZES = {"view": 1, "reshape": 1, "_unsafe_view": 1, "expand": 1, "broadcast_to": 1, "new_zeros": 1, "new_ones": 1,
         "new_full": 1, "new_empty": 1, "zeros": 0, "ones": 0, "full": 0, "empty": 0}  # fmt: skip
# At which argument windows say their padding, where not at the fourth.
PADDING = {f"{kind}_pool{space}d": 3 for kind in ("max", "avg") for space in (1, 2, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCall:
    """A rank's part of a call: `call` has the shapes of the pieces, every other argument is still the whole op's."""

    whole: Call
    call: Call
    choice: Choice
    degree: int
    rank: int

    @property
    def cut_dim(self) -> int:
        """The dim of the first result that is cut."""
        return result_dim(self.choice, self.whole)

    def result(self) -> tuple[int, int]:
        """Start and end of the rank's piece of the first result."""
        return piece(self.whole.outputs[0].shape[self.cut_dim], self.degree, self.rank)

    def rows(self, number: int) -> Rows:
        """The rows of windowed argument `number` that the rank reads."""
        return window_rows(self.choice, self.whole, number, self.degree, self.rank)

    def named(self, name: str, *numbers: tuple[str, int], call: Call | None = None) -> LocalOp:
        """The local op of that name, which must know these numbers."""
        return LocalOp(name=name, call=call or self.call, numbers=numbers)


def _put(call: Call, position: int, name: str, argument: Argument) -> Call:
    """`call` with one argument replaced, wherever it stands."""
    if position < len(call.arguments):
        return replace(call, arguments=(*call.arguments[:position], argument, *call.arguments[position + 1 :]))
    return replace(call, keywords=(*(pair for pair in call.keywords if pair[0] != name), (name, argument)))


def _sizes(at: RankCall) -> Call:
    name = at.whole.name
    shape = at.call.outputs[0].shape
    if name == "unflatten":
        dim = at.whole.arguments[1]
        sizes = at.whole.argument(2, "sizes")
        count = len(sizes) if isinstance(sizes, tuple) else 1
        first = dim % len(at.call.tensor(0).shape) if isinstance(dim, int) else 0
        return _put(at.call, 2, "sizes", shape[first : first + count])
    position = SIZES.get(name)
    return at.call if position is None else _put(at.call, position, "size", shape)


def _slice(at: RankCall) -> Call | LocalOp:
    if not any(at.choice.halo):
        if at.whole.name == "narrow":
            dim = at.whole.arguments[1]
            return _put(at.call, 3, "length", at.call.outputs[0].shape[dim if isinstance(dim, int) else 0])
        return at.call
    halo = at.choice.halo[0] or Halo(0, 1)
    return at.named("slice", ("dim", halo.dim), ("step", halo.stride))


def _pad(at: RankCall) -> Call:
    rows = at.rows(0)
    sizes = at.whole.argument(1, "pad")
    listed = list(sizes) if isinstance(sizes, tuple) else []
    last = len(at.whole.outputs[0].shape) - 1 - at.cut_dim
    listed[2 * last : 2 * last + 2] = [rows.before, rows.behind]
    return _put(at.call, 1, "pad", tuple(listed))


def _split(at: RankCall) -> Call:
    """Parts as long as the rank's pieces of them."""
    lengths = tuple(out.shape[at.cut_dim] for out in at.call.outputs)
    told = at.whole.arguments[1]
    return _put(at.call, 1, "split_size", lengths if isinstance(told, tuple) else lengths[0])


def _repeat(at: RankCall) -> Call:
    x, out = at.call.tensor(0).shape, at.call.outputs[0].shape
    sizes = (1,) * (len(out) - len(x)) + x
    return _put(at.call, 1, "repeats", tuple(b // a for a, b in zip(sizes, out, strict=True)))


def _groups(at: RankCall) -> Call:
    name = at.whole.name
    position = 1 if name == "group_norm" else 8 if name == "convolution" else 6
    return _put(at.call, position, "groups", at.choice.counts[0] // at.degree)


def _share(at: RankCall) -> LocalOp:
    number, dim = next(
        (number, state.value.dim) for number, state in enumerate(at.choice.inputs) if isinstance(state.value, Cut)
    )
    part, of = (call.tensors[number].shape[dim] for call in (at.call, at.whole))
    return at.named("mean_share", ("part", part), ("of", of))


def _range_of(name: str, number: int) -> Callable[[RankCall], LocalOp]:
    """The op `name`, which must know the rank's piece of the cut dim of argument `number` and that dim's whole size."""

    def form(at: RankCall) -> LocalOp:
        lay = at.choice.inputs[number].value
        assert isinstance(lay, Cut)
        size = at.whole.tensors[number].shape[lay.dim]
        start, end = piece(size, at.degree, at.rank)
        return at.named(name, ("start", start), ("end", end), ("of", size))

    return form


def _at_result(name: str) -> Callable[[RankCall], LocalOp]:
    """The op `name`, which must know the rank's piece of the result and that dim's whole size."""

    def form(at: RankCall) -> LocalOp:
        start, end = at.result()
        size = at.whole.outputs[0].shape[at.cut_dim]
        return at.named(name, ("dim", at.cut_dim), ("start", start), ("end", end), ("of", size))

    return form


def _batch_norm(at: RankCall) -> LocalOp:
    x = at.whole.tensor(0)
    return at.named("batch_norm", ("count", x.elements // x.shape[1]))


def _window(at: RankCall) -> LocalOp:
    """The op without padding along the cut dim: what the window reads beyond the edge is put there before."""
    rows, dim = at.rows(0), at.cut_dim
    position = PADDING.get(at.whole.name, 4)
    padding = at.whole.argument(position, "padding", 0)
    space = len(at.whole.tensor(0).shape) - _space(at.whole)
    numbers = (("dim", dim), ("before", rows.before), ("behind", rows.behind))
    padding = _counted_padding(at.whole, padding) if isinstance(padding, str) else padding
    if isinstance(padding, str):
        return at.named("window", *numbers)
    listed = list(broadcast(padding, _space(at.whole), 0))
    listed[dim - space] = 0
    return at.named("window", *numbers, call=_put(at.call, position, "padding", tuple(listed)))


def _counted_padding(call: Call, padding: str) -> Argument:
    """ "same" and "valid" as numbers, where a number on both sides says the same."""
    kernel = call.tensor(1).shape[2:]
    apart = broadcast(call.argument(5, "dilation", 1), len(kernel), 1)
    reach = [between * (size - 1) for size, between in zip(kernel, apart, strict=True)]
    if padding == "same" and any(each % 2 for each in reach):
        return padding
    return tuple(each // 2 if padding == "same" else 0 for each in reach)


def _space(call: Call) -> int:
    """Number of spatial dims of a convolution or pooling."""
    return int(call.name[-2]) if call.name[-1] == "d" else len(call.tensor(1).shape) - 2


def _transposed_window(at: RankCall) -> LocalOp:
    """The op without padding along the cut dim, its result shifted to where the rank's piece starts."""
    rows, dim = at.rows(0), at.cut_dim
    halo = at.choice.halo[0] or Halo(dim, 1)
    start, end = at.result()
    call, first = at.call, len(at.whole.tensor(0).shape) - _space(at.whole)
    for position, name in ((4, "padding"), (7 if at.whole.name == "convolution" else 5, "output_padding")):
        listed = list(broadcast(at.whole.argument(position, name, 0), _space(at.whole), 0))
        listed[dim - first] = 0
        call = _put(call, position, name, tuple(listed))
    shift = start + halo.padding - rows.start * halo.stride
    return at.named("transposed_window", ("dim", dim), ("first", shift), ("length", end - start), call=call)


def _adaptive(at: RankCall) -> Call:
    first = len(at.whole.tensor(0).shape) - _space(at.whole)
    return _put(at.call, 1, "output_size", at.call.outputs[0].shape[first:])


def _nearest(at: RankCall) -> Call:
    told = at.whole.argument(1, "output_size")
    return at.call if told is None else _put(at.call, 1, "output_size", at.call.outputs[0].shape[2:])


def _experts(at: RankCall) -> LocalOp:
    """Where routing is balanced a rank's experts have 1/degree of the rows."""
    x, w, *rest = at.call.tensors
    local = _experts_at(at)
    count = local.number("end") - local.number("start")
    rows = x._replace(shape=(-(-x.shape[0] * count // at.whole.tensor(1).shape[0]), *x.shape[1:]))
    return replace(local, call=at.call.with_tensors((rows, w, *rest), at.call.outputs))


def _experts_at(at: RankCall) -> LocalOp:
    start, end = piece(at.whole.tensor(1).shape[0], at.degree, at.rank)
    lay = at.choice.inputs[1].value
    order = lay.order if isinstance(lay, Cut) else ()
    return replace(at.named(at.choice.local, ("start", start), ("end", end)), order=order)


# What `Choice.local` says -> the rank's op.
FORMS: dict[str, Callable[[RankCall], Call | LocalOp]] = {
    "sizes": _sizes,
    "slice": _slice,
    "pad": _pad,
    "repeat": _repeat,
    "split": _split,
    "groups": _groups,
    "mean_share": _share,
    "mean_loss": lambda at: at.named("mean_loss"),
    "batch_norm": _batch_norm,
    "window": _window,
    "transposed_window": _transposed_window,
    "adaptive": _adaptive,
    "experts": _experts,
    "experts_apart": _experts_at,
    "experts_to": _experts_at,
    "experts_at": _experts_at,
    "experts_from": _experts_at,
    "own_numbers": _range_of("own_numbers", 2),
    "nearest": _nearest,
    "vocabulary": _range_of("vocabulary", 0),
    "vocabulary_loss": _range_of("vocabulary_loss", 0),
    "arange": _at_result("arange"),
    "dropout": _at_result("dropout"),
    "attention_rows": _at_result("attention_rows"),
    "attention_heads": _at_result("attention_heads"),
    "attention_dropout": _at_result("attention_dropout"),
}
