"""localise(call, choice, degree, rank): the op that a rank runs on its pieces.

Mostly it is the same op with other sizes; where it is another, a `LocalOp` names it and says where the rank stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from placer.errors import UsageError
from placer.rules.calls import Argument, Call, Value
from placer.rules.layouts import Choice, Cut, Halo, LocalOp, Rows, State, held_size, piece, wanted
from placer.rules.splits.patterns import broadcast, tensors

# Ops that are told the sizes of their result, and at which argument.
SIZES = {"view": 1, "reshape": 1, "_unsafe_view": 1, "expand": 1, "broadcast_to": 1, "new_zeros": 1, "new_ones": 1,
         "new_full": 1, "new_empty": 1, "zeros": 0, "ones": 0, "full": 0, "empty": 0}  # fmt: skip


# At which argument windows say their padding, where not at the fourth.
PADDING = {**{f"{kind}_pool{space}d": 3 for kind in ("max", "avg") for space in (1, 2, 3)}}


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
        lay = self.choice.outputs[0].value
        if not isinstance(lay, Cut):
            raise UsageError(f"{self.whole.target} cut as {self.choice.name!r} has no cut result")
        return lay.dim

    def result(self) -> tuple[int, int]:
        """Start and end of the rank's piece of the first result."""
        return piece(self.whole.outputs[0].shape[self.cut_dim], self.degree, self.rank)

    def rows(self, number: int) -> Rows:
        """The rows of windowed argument `number` that the rank reads."""
        halo = self.choice.halo[number]
        if halo is None:
            raise UsageError(f"argument {number} of {self.whole.target} has no window")
        return wanted(halo, tensors(self.whole)[number].shape[halo.dim], *self.result())


def localise(call: Call, choice: Choice, degree: int, rank: int) -> Call | LocalOp:
    """The op that `rank` of `degree` runs. Raises UsageError where the degree does not divide what it must."""
    if not legal(choice, call, degree):
        raise UsageError(f"{call.target} cannot be cut as {choice.name!r} {degree} times: {_shapes(call)}")
    values = iter([_argument(call, choice, number, value, degree, rank) for number, value in enumerate(tensors(call))])
    local = Call(
        target=call.target,
        arguments=tuple(filled(argument, values) for argument in call.arguments),
        keywords=tuple((name, filled(argument, values)) for name, argument in call.keywords),
        outputs=tuple(
            _piece(value, state, degree, rank) for value, state in zip(call.outputs, choice.outputs, strict=True)
        ),
    )
    if not choice.local:
        return local
    return FORMS[choice.local](RankCall(whole=call, call=local, choice=choice, degree=degree, rank=rank))


def legal(choice: Choice, call: Call, degree: int) -> bool:
    """Whether the call's sizes can be cut so: they divide, or the choice allows uneven pieces and none is empty."""
    if any(count % degree for count in choice.counts):
        return False
    pairs = (*zip(tensors(call), choice.inputs, strict=True), *zip(call.outputs, choice.outputs, strict=True))
    cuts = [(value.shape[state.value.dim], state.value) for value, state in pairs if isinstance(state.value, Cut)]
    if any(size % (lay.every or lay.parts) for size, lay in cuts):
        return False
    sizes = [lay.every or size // lay.parts for size, lay in cuts]
    if any(lay.every % degree for _, lay in cuts):
        return False
    if choice.uneven or any(choice.halo):
        return all(size >= degree for size in sizes) and _reaches(choice, call, degree)
    return all(size % degree == 0 for size in sizes)


def _reaches(choice: Choice, call: Call, degree: int) -> bool:
    """Every rank's window reads some row of the input, not padding alone."""
    for number, halo in enumerate(choice.halo):
        if halo is None:
            continue
        place = RankCall(whole=call, call=call, choice=choice, degree=degree, rank=0)
        for rank in range(degree):
            rows = replace(place, rank=rank).rows(number)
            if rows.end <= rows.start:
                return False
    return True


def _argument(call: Call, choice: Choice, number: int, value: Value, degree: int, rank: int) -> Value:
    halo = choice.halo[number] if choice.halo else None
    if halo is None:
        return _piece(value, choice.inputs[number], degree, rank)
    rows = RankCall(whole=call, call=call, choice=choice, degree=degree, rank=rank).rows(number)
    return value._replace(shape=_with(value.shape, halo.dim, rows.end - rows.start))


def _piece(value: Value, state: State, degree: int, rank: int) -> Value:
    if not isinstance(state.value, Cut):
        return value
    dim = state.value.dim
    size = held_size(state.value, value.shape[dim], degree, rank)
    return value._replace(shape=_with(value.shape, dim, size))


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def filled(argument: Argument, values: Iterator[Value]) -> Argument:
    """An argument with the next values in place of its tensors."""
    if isinstance(argument, Value):
        return next(values)
    if isinstance(argument, tuple):
        return tuple(filled(part, values) for part in argument)
    return argument


def _shapes(call: Call) -> str:
    return ", ".join(str(list(value.shape)) for value in tensors(call))


def _put(call: Call, position: int, name: str, argument: Argument) -> Call:
    """`call` with one argument replaced, wherever it stands."""
    if position < len(call.arguments):
        return replace(call, arguments=(*call.arguments[:position], argument, *call.arguments[position + 1 :]))
    return replace(call, keywords=(*(pair for pair in call.keywords if pair[0] != name), (name, argument)))


def _sizes(place: RankCall) -> Call:
    name = place.whole.target.rpartition("::")[2]
    shape = place.call.outputs[0].shape
    if name == "unflatten":
        dim = place.whole.arguments[1]
        sizes = place.whole.argument(2, "sizes")
        count = len(sizes) if isinstance(sizes, tuple) else 1
        first = dim % len(place.call.tensor(0).shape) if isinstance(dim, int) else 0
        return _put(place.call, 2, "sizes", shape[first : first + count])
    position = SIZES.get(name)
    return place.call if position is None else _put(place.call, position, "size", shape)


def _slice(place: RankCall) -> Call | LocalOp:
    name = place.whole.target.rpartition("::")[2]
    if not any(place.choice.halo):
        if name == "narrow":
            dim = place.whole.arguments[1]
            return _put(place.call, 3, "length", place.call.outputs[0].shape[dim if isinstance(dim, int) else 0])
        return place.call
    halo = place.choice.halo[0] or Halo(0, 1)
    return LocalOp(name="slice", call=place.call, numbers=(("dim", halo.dim), ("step", halo.stride)))


def _pad(place: RankCall) -> Call:
    rows = place.rows(0)
    sizes = place.whole.argument(1, "pad")
    listed = list(sizes) if isinstance(sizes, tuple) else []
    last = len(place.whole.outputs[0].shape) - 1 - place.cut_dim
    listed[2 * last : 2 * last + 2] = [rows.before, rows.behind]
    return _put(place.call, 1, "pad", tuple(listed))


def _split(place: RankCall) -> Call:
    """Parts as long as the rank's pieces of them."""
    lengths = tuple(out.shape[place.cut_dim] for out in place.call.outputs)
    told = place.whole.arguments[1]
    return _put(place.call, 1, "split_size", lengths if isinstance(told, tuple) else lengths[0])


def _repeat(place: RankCall) -> Call:
    x, out = place.call.tensor(0).shape, place.call.outputs[0].shape
    sizes = (1,) * (len(out) - len(x)) + x
    return _put(place.call, 1, "repeats", tuple(b // a for a, b in zip(sizes, out, strict=True)))


def _groups(place: RankCall) -> Call:
    name = place.whole.target.rpartition("::")[2]
    position = 1 if name == "group_norm" else 8 if name == "convolution" else 6
    return _put(place.call, position, "groups", place.choice.counts[0] // place.degree)


def _share(place: RankCall) -> LocalOp:
    number, dim = next(
        (number, state.value.dim) for number, state in enumerate(place.choice.inputs) if isinstance(state.value, Cut)
    )
    part, of = (tensors(call)[number].shape[dim] for call in (place.call, place.whole))
    return LocalOp(name="mean_share", call=place.call, numbers=(("part", part), ("of", of)))


def _range_of(name: str, number: int) -> Callable[[RankCall], LocalOp]:
    """The op `name`, which must know the rank's piece of the cut dim of argument `number` and that dim's whole size."""

    def form(place: RankCall) -> LocalOp:
        lay = place.choice.inputs[number].value
        assert isinstance(lay, Cut)
        size = tensors(place.whole)[number].shape[lay.dim]
        start, end = piece(size, place.degree, place.rank)
        return LocalOp(name=name, call=place.call, numbers=(("start", start), ("end", end), ("of", size)))

    return form


def _at_result(name: str) -> Callable[[RankCall], LocalOp]:
    """The op `name`, which must know the rank's piece of the result and that dim's whole size."""

    def form(place: RankCall) -> LocalOp:
        start, end = place.result()
        size = place.whole.outputs[0].shape[place.cut_dim]
        numbers = (("dim", place.cut_dim), ("start", start), ("end", end), ("of", size))
        return LocalOp(name=name, call=place.call, numbers=numbers)

    return form


def _batch_norm(place: RankCall) -> LocalOp:
    x = place.whole.tensor(0)
    return LocalOp(name="batch_norm", call=place.call, numbers=(("count", x.elements // x.shape[1]),))


def _named(name: str) -> Callable[[RankCall], LocalOp]:
    def form(place: RankCall) -> LocalOp:
        return LocalOp(name=name, call=place.call)

    return form


def _window(place: RankCall) -> LocalOp:
    """The op without padding along the cut dim: what the window reads beyond the edge is put there before."""
    rows, dim = place.rows(0), place.cut_dim
    name = place.whole.target.rpartition("::")[2]
    position = PADDING.get(name, 4)
    padding = place.whole.argument(position, "padding", 0)
    space = len(place.whole.tensor(0).shape) - _space(place.whole)
    numbers = [("dim", dim), ("before", rows.before), ("behind", rows.behind)]
    padding = _counted_padding(place.whole, padding) if isinstance(padding, str) else padding
    if isinstance(padding, str):
        return LocalOp(name="window", call=place.call, numbers=tuple(numbers))
    listed = list(broadcast(padding, _space(place.whole), 0))
    listed[dim - space] = 0
    return LocalOp(name="window", call=_put(place.call, position, "padding", tuple(listed)), numbers=tuple(numbers))


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
    name = call.target.rpartition("::")[2]
    return int(name[-2]) if name[-1] == "d" else len(call.tensor(1).shape) - 2


def _transposed_window(place: RankCall) -> LocalOp:
    """The op without padding along the cut dim, its result shifted to where the rank's piece starts."""
    rows, dim = place.rows(0), place.cut_dim
    halo = place.choice.halo[0] or Halo(dim, 1)
    start, end = place.result()
    call, first = place.call, len(place.whole.tensor(0).shape) - _space(place.whole)
    any_kind = place.whole.target.endswith("::convolution")
    for position, name in ((4, "padding"), (7 if any_kind else 5, "output_padding")):
        listed = list(broadcast(place.whole.argument(position, name, 0), _space(place.whole), 0))
        listed[dim - first] = 0
        call = _put(call, position, name, tuple(listed))
    shift = start + halo.padding - rows.start * halo.stride
    return LocalOp(
        name="transposed_window", call=call, numbers=(("dim", dim), ("first", shift), ("length", end - start))
    )


def _adaptive(place: RankCall) -> Call:
    first = len(place.whole.tensor(0).shape) - _space(place.whole)
    return _put(place.call, 1, "output_size", place.call.outputs[0].shape[first:])


def _nearest(place: RankCall) -> Call:
    told = place.whole.argument(1, "output_size")
    return place.call if told is None else _put(place.call, 1, "output_size", place.call.outputs[0].shape[2:])


def _experts(place: RankCall) -> LocalOp:
    """Where routing is balanced a rank's experts have 1/degree of the rows."""
    x, w = place.call.tensor(0), place.call.tensor(1)
    start, end = piece(place.whole.tensor(1).shape[0], place.degree, place.rank)
    rows = x._replace(shape=(-(-x.shape[0] * (end - start) // place.whole.tensor(1).shape[0]), *x.shape[1:]))
    call = replace(place.call, arguments=(rows, w, *place.call.arguments[2:]))
    return LocalOp(name="experts", call=call, numbers=(("start", start), ("end", end)), order=_expert_order(place))


def _experts_at(place: RankCall) -> LocalOp:
    start, end = piece(place.whole.tensor(1).shape[0], place.degree, place.rank)
    numbers = (("start", start), ("end", end))
    return LocalOp(name=place.choice.local, call=place.call, numbers=numbers, order=_expert_order(place))


def _expert_order(place: RankCall) -> tuple[int, ...]:
    lay = place.choice.inputs[1].value
    return lay.order if isinstance(lay, Cut) else ()


# What `Choice.local` says -> the rank's op.
FORMS: dict[str, Callable[[RankCall], Call | LocalOp]] = {
    "sizes": _sizes,
    "slice": _slice,
    "pad": _pad,
    "repeat": _repeat,
    "split": _split,
    "groups": _groups,
    "mean_share": _share,
    "mean_loss": _named("mean_loss"),
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
