"""A model's own run as the witness of a fold: what every one of the alike layers computes, and what is read of it.

The whole model runs once on an example, and once with all but three of its alike layers left out (`folding`). Of both
runs the calls of torch are noted, with their plain arguments and with where their tensors come from. A fold holds where

    in the whole run   layers are called once, in order, each does what the one before it did, with weights of its own,
                       and nobody else reads these weights, or what a layer makes but the next one
    in both runs       what comes before the second layer's end and from the last layer on is the same

so that nothing hangs on a layer's number, or on something that a layer leaves or finds elsewhere.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from placer.rules.opaque import OpaqueCost
from placer.tracer.export.exporting import LossFunction, Training, run_as_exported
from placer.tracer.export.folding import Repeat, folded
from placer.tracer.export.opaque import calling
from placer.tracer.export.state.copies import copied

# Where a tensor comes from: ("call", its number, place among results), ("state", name) or ("other", identity).
_Source = tuple[object, ...]
_CALL, _STATE, _OTHER = "call", "state", "other"


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of torch: what is called and how, with plain arguments, the sources of its tensors, and whether it gives
    any."""

    does: object
    plain: Sequence[object]
    reads: Sequence[_Source]
    gives: bool


@dataclass(slots=True)
class Run:
    """What a model called; of each repeat the numbers of calls before each of its layers was entered."""

    calls: list[_Call] = field(default_factory=list)
    entered: list[list[tuple[int, int]]] = field(default_factory=list)


class _Noting(TorchFunctionMode):
    """Notes calls."""

    def __init__(self, run: Run, state: dict[int, str]) -> None:
        super().__init__()
        self._run = run
        self._known: dict[int, _Source] = {number: (_STATE, name) for number, name in state.items()}
        self._alive: list[object] = []  # or identities would come again

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        leaves, shape = _pytree.tree_flatten((args, kwargs or {}))
        reads = [self._known.get(id(leaf), (_OTHER, id(leaf))) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        made = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "__get__" and not isinstance(made, torch.Tensor):
            return made  # the size or the type of a tensor: what is made of it is in calls
        number = len(self._run.calls)
        plain = [_plain(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)]
        does = func, str(shape), torch.is_grad_enabled()
        results = [leaf for leaf in _pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self._run.calls.append(_Call(does, plain, reads, bool(results)))
        self._known.update({id(leaf): (_CALL, number, place) for place, leaf in enumerate(results)})
        self._alive.append((leaves, made))
        return made


def _plain(leaf: object) -> object:
    """What an argument is compared by: objects but functions by their class, as a copy of a model has others."""
    known = (int, float, complex, str, bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
    if isinstance(leaf, (*known, slice, type, types.FunctionType, types.BuiltinFunctionType, type(...))):
        return type(leaf), repr(leaf)
    return type(leaf)


def is_borne_out(
    model: nn.Module, loss_fn: LossFunction | None, opaque: Mapping[str, OpaqueCost],
    given: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]], found: tuple[Repeat, ...],
) -> bool:  # fmt: skip
    """Whether runs of the model show that nothing hangs on the layers that are left out; not where it does not run.

    given: the inputs, and the values of those that are constants.
    """

    def run(left: tuple[Repeat, ...]) -> Run:
        wrapper = Training(copied(model), loss_fn)
        wrapper.constants.values = given[1]
        with calling(wrapper.model, opaque):
            return noted(lambda mode: run_as_exported(wrapper, given[0], mode), wrapper.model, found, left)

    try:
        return bears_out(run(()), run(found), found)
    except Exception:  # it is exported whole, which says what is wrong
        return False


def noted(
    run: Callable[[TorchFunctionMode], object], model: nn.Module, found: tuple[Repeat, ...], left: tuple[Repeat, ...]
) -> Run:
    """The calls of a run of `model` within the mode that it is given, with those repeats folded that are in `left`."""
    made = Run(entered=[[] for _ in found])
    state = {id(one): name for name, one in (*model.named_parameters(), *model.named_buffers())}
    handles = []
    for entered, repeat in zip(made.entered, found, strict=True):
        layers = model.get_submodule(repeat.path)
        for child in (one for copy in range(repeat.count) for one in repeat.children(copy)):
            note = _entering(made.calls, entered, child)
            handles.append(layers.get_submodule(str(child)).register_forward_pre_hook(note))
    try:
        with folded(model, left):
            run(_Noting(made, state))
    finally:
        for handle in handles:
            handle.remove()
    return made


def _entering(calls: list[_Call], entered: list[tuple[int, int]], child: int) -> Callable[[nn.Module, object], None]:
    def note(module: nn.Module, given: object) -> None:
        entered.append((child, len(calls)))

    return note


def bears_out(whole: Run, short: Run, found: Sequence[Repeat]) -> bool:
    """Whether the run of the whole model shows that of each repeat three copies say all."""
    regions = [_region(whole, short, number, repeat) for number, repeat in enumerate(found)]
    sound = [region for region in regions if region is not None]
    if len(sound) != len(found) or not all(region.holds() for region in sound):
        return False
    own = _around(whole, [(one.starts[1], one.starts[1] + one.length, one.starts[-1]) for one in sound])
    return own == _around(short, [(one.short[1], one.short[1] + one.length, one.short[2]) for one in sound])


def _region(whole: Run, less: Run, number: int, repeat: Repeat) -> _Layers | None:
    """Where the layers of a repeat run, if each is called once, in order, and does as many calls as the others."""
    layers = [child for copy in range(repeat.count) for child in repeat.children(copy)]
    kept = [child for copy in (0, 1, repeat.count - 1) for child in repeat.children(copy)]
    entered = whole.entered[number], less.entered[number]
    if [[child for child, _ in one] for one in entered] != [layers, kept]:
        return None
    starts, short = ([at for _, at in one][:: repeat.period] for one in entered)
    length = starts[1] - starts[0]
    even = length and all(after - before == length for before, after in pairwise(starts))
    if not even or short[1] - short[0] != length or starts[-1] + length > len(whole.calls):
        return None
    return _Layers(whole.calls, repeat, starts, short, length)


def _around(run: Run, regions: Sequence[tuple[int, int, int]]) -> list[object]:
    """The calls but for those of the layers between the second and the last, what the last reads of these and of the
    second told alike. regions: where the second begins, where it ends, and where the last begins."""
    places: dict[int, int] = {}
    for number in range(len(run.calls)):
        if not any(end <= number < last for _, end, last in regions):
            places[number] = len(places)
    others: dict[_Source, int] = {}
    told: list[object] = []
    for number in places:
        call, reads = run.calls[number], list[object]()
        for source in call.reads:
            of = source[1] if source[0] == _CALL and isinstance(source[1], int) else -1
            inner = [n for n, (begin, _, last) in enumerate(regions) if begin <= of < last <= number]
            if inner:
                reads.append(("inner", inner[0]))
            elif of >= 0:
                reads.append((_CALL, places.get(of, -1), source[2]))
            else:
                reads.append(source if source[0] == _STATE else others.setdefault(source, len(others)))
        told.append((call.does, call.plain, reads))
    return told


@dataclass(frozen=True, slots=True)
class _Layers:
    """The calls of alike layers: where each copy's begin in the whole run, those of three in the folded one, and how
    many a copy has."""

    calls: Sequence[_Call]
    repeat: Repeat
    starts: Sequence[int]
    short: Sequence[int]
    length: int

    def holds(self) -> bool:
        """Whether each does what the one before it did, and is read by itself and the next alone."""
        copies = range(self.repeat.count - 1)
        return all(self._alike(copy, at) for copy in copies for at in range(self.length)) and self._is_closed()

    def _alike(self, copy: int, at: int) -> bool:
        one, other = (self.calls[self.starts[number] + at] for number in (copy, copy + 1))
        if (one.does, one.plain, len(one.reads)) != (other.does, other.plain, len(other.reads)):
            return False
        return all(self._read_alike(a, b, copy) for a, b in zip(one.reads, other.reads, strict=True))

    def _read_alike(self, one: _Source, other: _Source, copy: int) -> bool:
        here, there = self._place(one), self._place(other)
        if here is not None:
            return here[0] >= copy - 1 and there == (here[0] + 1, here[1], here[2])
        if there is not None:  # the first reads what comes before the layers, the second what the first made
            return copy == 0 and there[0] == 0
        return other == (self._renamed(one, copy) or one)

    def _place(self, source: _Source) -> tuple[int, int, object] | None:
        """The copy that makes a tensor, by which of its calls; None for what others make."""
        if source[0] != _CALL or not isinstance(source[1], int):
            return None
        number = source[1] - self.starts[0]
        return (number // self.length, number % self.length, source[2]) if 0 <= number < self._all else None

    @property
    def _all(self) -> int:
        return self.length * self.repeat.count

    def _renamed(self, source: _Source, copy: int) -> _Source | None:
        """A weight of a copy as the next copy has it; None for other tensors."""
        child = self._child(source)
        if child is None or child not in self.repeat.children(copy):
            return None
        prefix = f"{self.repeat.path}.{child}."
        return _STATE, f"{self.repeat.path}.{child + self.repeat.period}.{str(source[1])[len(prefix) :]}"

    def _child(self, source: _Source) -> int | None:
        """The layer whose weight a tensor is."""
        name, prefix = str(source[1]), f"{self.repeat.path}."
        if source[0] != _STATE or not name.startswith(prefix):
            return None
        child = int(name[len(prefix) :].partition(".")[0])
        first, end = self.repeat.start, self.repeat.start + self.repeat.period * self.repeat.count
        return child if first <= child < end else None

    def _is_closed(self) -> bool:
        """Whether nobody reads weights of a layer but it, and what it makes but it and the next one."""
        for number, call in enumerate(self.calls):
            own = (number - self.starts[0]) // self.length if 0 <= number - self.starts[0] < self._all else None
            for source in call.reads if call.gives else ():
                place, child = self._place(source), self._child(source)
                next_one = own is not None and place is not None and place[0] in (own, own - 1)
                if place is not None and not next_one and place[0] != self.repeat.count - 1:
                    return False
                if child is not None and (own is None or child not in self.repeat.children(own)):
                    return False
        return True
