"""The arguments of a rank's op: what the rule's local call says in numbers, put into the op's own arguments.

A local call is made at two numbers of rows; numbers that differ between the two are affine in the rows. Where the local
call says what the whole call says, the op's own argument stays (which may be a size that is computed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd

from torch import fx
from torch.fx.node import Argument

from placer.errors import UsageError
from placer.graph import Affine, BlockClass, Op
from placer.rules.calls import Argument as Told
from placer.rules.calls import Call, Value
from placer.rules.graph_calls import call_of
from placer.rules.layouts import Choice
from placer.rules.splits.localise import AxisOp, local_forms

# Numbers of rows at which a local call is looked at.
FEW, MORE = 4, 5
# Local ops that sum over ranks: along both axes they do so over all devices at once. Their numbers are of the whole op.
MERGED = frozenset({"batch_norm", "mean_loss"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A call at some number of rows, whole and on the rank, with the local ops that this is."""

    whole: Call
    local: Call
    forms: tuple[AxisOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalForm:
    """A local op that a rank runs along an axis (None: all devices), with the `numbers` and `order` it is given."""

    axis: int | None
    name: str
    numbers: Mapping[str, Affine]
    order: tuple[int, ...] = ()

    @staticmethod
    def of(few: AxisOp, more: AxisOp) -> LocalForm:
        """The local op that is `few` and `more` at as many rows."""
        one, other, name = dict(few.local.numbers), dict(more.local.numbers), few.local.name
        if name == "mean_share":
            numbers = _share(one, other)
        else:
            numbers = {key: _through(size, other[key]) for key, size in one.items()}
        return LocalForm(axis=few.axis, name=name, numbers=numbers, order=few.local.order)


def _through(few: int, more: int) -> Affine:
    """The number that is `few` at FEW rows and `more` at MORE."""
    per_row = (more - few) // (MORE - FEW)
    return Affine(few - per_row * FEW, per_row)


def _share(few: dict[str, int], more: dict[str, int]) -> dict[str, Affine]:
    """The rank's share in lowest terms. Raises UsageError where it depends on the rows."""
    if few["part"] * more["of"] != more["part"] * few["of"]:
        raise UsageError("a rank's share of the mean depends on the rows of the microbatch")
    common = gcd(few["part"], few["of"])
    return {name: Affine(size // common) for name, size in few.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCall:
    """A rank's call, and the local ops it stands in; none where it is the op itself."""

    target: str
    forms: tuple[LocalForm, ...]
    samples: tuple[Sample, Sample]

    def filled(
        self,
        node: fx.Node,
        tensors: list[fx.Node],
        number: Callable[[Affine], Argument],
        value: Callable[[fx.Node], fx.Node],
    ) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """The arguments of `node` with `tensors` in place of its own, and the local call's numbers."""
        filler = _Filler(iter(tensors), number, value)
        few, more = self.samples
        args = tuple(
            filler.argument(own, *told)
            for own, *told in zip(
                node.args, few.whole.arguments, more.whole.arguments, few.local.arguments, more.local.arguments,
                strict=True,
            )
        )  # fmt: skip
        told = [dict(call.keywords) for call in (few.whole, more.whole, few.local, more.local)]
        names = dict.fromkeys((*node.kwargs, *told[2]))
        kwargs = {name: filler.argument(node.kwargs.get(name), *(one.get(name) for one in told)) for name in names}
        return args, kwargs


def local_call(block_class: BlockClass, op: Op, choice: Choice, degree: int, rank: int) -> LocalCall:
    """The call of `rank`. Raises UsageError where the degree does not divide what it must."""
    few, more = (_sample(block_class, op, choice, degree, rank, rows) for rows in (FEW, MORE))
    forms = tuple(map(LocalForm.of, few.forms, more.forms))
    if len(forms) == 2 and {form.name for form in forms} <= MERGED:
        forms = (replace(forms[0], axis=None),)
    return LocalCall(target=few.whole.target, forms=forms, samples=(few, more))


def _sample(block_class: BlockClass, op: Op, choice: Choice, degree: int, rank: int, rows: int) -> Sample:
    whole = call_of(block_class, op, rows)
    made = local_forms(whole, choice, degree, rank)
    return Sample(whole=whole, local=made.call, forms=made.forms)


@dataclass(frozen=True, slots=True)
class _Filler:
    """Puts tensors and numbers into arguments."""

    tensors: Iterator[fx.Node]
    number: Callable[[Affine], Argument]
    value: Callable[[fx.Node], fx.Node]

    def argument(self, own: Argument, whole: Told, whole_more: Told, local: Told, local_more: Told) -> Argument:
        """One argument, lists entry by entry."""
        if isinstance(local, Value):
            return next(self.tensors)
        if isinstance(local, tuple) and isinstance(local_more, tuple):
            return self._listed(own, whole, whole_more, local, local_more)
        if local == whole and local_more == whole_more and type(local) is type(whole) and own is not None:
            return self._kept(own)
        if isinstance(local, bool | str | float):
            return local
        if isinstance(local, int) and isinstance(local_more, int):
            return self.number(_through(local, local_more))
        return self._kept(own)

    def _listed(
        self, own: Argument, whole: Told, whole_more: Told, local: tuple[Told, ...], more: tuple[Told, ...]
    ) -> Argument:
        known = own if isinstance(own, list | tuple) and len(own) == len(local) else [None] * len(local)
        before = whole if isinstance(whole, tuple) and len(whole) == len(local) else (None,) * len(local)
        after = whole_more if isinstance(whole_more, tuple) and len(whole_more) == len(local) else before
        return [self.argument(*parts) for parts in zip(known, before, after, local, more, strict=True)]

    def _kept(self, own: Argument) -> Argument:
        """The op's own argument: a constant, a type, or a size."""
        return fx.map_arg(own, self.value)
