"""A model built without its memory, each of whose tensors can be made alone, with the bits one device would give it.

    with DeferredInit() as deferred: model = factory()    large tensors are fake: what fills them is noted, not done
    deferred.made(tensor) -> the real tensor              by doing again what was noted for it, and nothing else

Random numbers come in one stream, so every draw is done once in its order, into memory that is given up at once, and
the generator's state before it is kept (5 KB): a draw can then be repeated alone. At no time is there more than the
tensor being drawn, and while one is made, what it is made from.

A tensor of at most SMALL elements (a list of rates, a range) is real all the time: models read such numbers. Where one
reads a number of a large tensor, that tensor is made for a moment. A model that draws by the values of a large tensor,
whose sizes depend on them, or that converts them (`model.to(torch.bfloat16)`), cannot be built so:
`UnreplayableError`, or what torch's fake tensors raise.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree

from placer.errors import PlacerError
from placer.runtime.observer import OpWatch
from placer.tracer.measure.call_cache import storage_of

# Elements of a tensor that is real while the model is built: enough for a number per layer or per pair of a head.
SMALL = 256
# In-place ops that set every element of their tensor without reading it.
_FILLS = frozenset({"zero_", "fill_", "normal_", "uniform_", "exponential_", "random_", "log_normal_", "cauchy_"})


class UnreplayableError(PlacerError):
    """A model whose initialiser cannot be done tensor by tensor; says by what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A call that was not done: the fake tensors it `takes`, and each of its results (`given`) that is one.

    reads, writes, makes: ids of the storages that it takes, changes, makes. fills: it sets all of what it writes and
    reads nothing. random: the generator's state before it, where it draws and that is kept.
    """

    function: OpOverload
    args: tuple[object, ...]
    kwargs: dict[str, object]
    given: tuple[FakeTensor | None, ...]
    takes: tuple[FakeTensor, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    makes: frozenset[int]
    fills: bool
    draws: bool
    random: torch.Tensor | None


@dataclass(kw_only=True)
class _Log:
    """What was noted, and where each storage and each fake tensor comes up in it."""

    notes: list[Noted] = field(default_factory=list)
    touching: dict[int, list[int]] = field(default_factory=dict)
    giving: dict[int, int] = field(default_factory=dict)

    def add(self, note: Noted) -> None:
        place = len(self.notes)
        self.notes.append(note)
        for storage in note.writes | note.makes:
            self.touching.setdefault(storage, []).append(place)
        for tensor in note.given:
            if tensor is not None:
                self.giving.setdefault(id(tensor), place)


class DeferredInit(OpWatch):  # type: ignore[no-untyped-call]  # torch does not type it
    """Notes what is done to tensors of more than `small` elements (SMALL by default).

    draws: whether their random numbers will be asked for; without, none is drawn, and such a tensor cannot be made.
    """

    def __init__(self, small: int | None = None, *, draws: bool = True) -> None:
        super().__init__()
        self._small, self._draws = SMALL if small is None else small, draws
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._log = _Log()

    def __enter__(self) -> DeferredInit:
        self._swap, torch.utils.swap_tensors = torch.utils.swap_tensors, _unseen_swap
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failed: object) -> None:
        super().__exit__(*failed)  # type: ignore[no-untyped-call]
        torch.utils.swap_tensors = self._swap

    def op(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Do `func` where it is about small tensors, note it where it is about large ones."""
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        takes = tuple(tensor for tensor in tensors if isinstance(tensor, FakeTensor))
        if tensors and not takes:
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self.made(takes[0]).item()
        with self._fake:
            given = func(*args, **kwargs)
        results = tuple(_pytree.tree_leaves(given))
        if not takes and not any(isinstance(one, FakeTensor) and one.numel() > self._small for one in results):
            return func(*args, **kwargs)
        self._note(func, args, kwargs, takes, tuple(one if isinstance(one, FakeTensor) else None for one in results))
        return given

    def made(self, tensor: torch.Tensor) -> torch.Tensor:
        """The real tensor in memory of its own."""
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        real: dict[int, torch.Tensor] = {}
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for place in self._needed(tensor):
                _done(self._log.notes[place], real)
        found = real[id(tensor)].detach()
        return found if found.untyped_storage().nbytes() == found.numel() * found.element_size() else found.clone()

    def _note(
        self,
        func: OpOverload,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        takes: tuple[FakeTensor, ...],
        given: tuple[FakeTensor | None, ...],
    ) -> None:
        changed = _changed(func, args, kwargs)
        if takes and any(not isinstance(tensor, FakeTensor) for tensor in changed):
            raise UnreplayableError(f"{func} writes the values of a large tensor into a small one")
        writes = frozenset(map(storage_of, changed))
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws and any(not any(tensor is one for one in changed) for tensor in takes):
            raise UnreplayableError(f"{func} draws random numbers by the values of a large tensor")
        reads = frozenset(map(storage_of, takes))
        self._log.add(
            Noted(
                function=func,
                args=args,
                kwargs=kwargs,
                given=given,
                takes=takes,
                reads=reads,
                writes=writes,
                makes=frozenset(storage_of(one) for one in given if one is not None) - reads,
                fills=bool(changed) and func._opname in _FILLS and _is_all(cast(FakeTensor, changed[0])),
                draws=draws,
                random=_drawn(func, args, kwargs) if draws and self._draws else None,
            )
        )

    def _needed(self, tensor: FakeTensor) -> tuple[int, ...]:
        """The places in the log of what makes `tensor`, in order: found from the last to the first."""
        search = _Search(self._log)
        search.wants_object(tensor, len(self._log.notes))
        search.wants_content(storage_of(tensor), len(self._log.notes))
        return tuple(sorted(search.found()))


class _Search:
    """The calls that a tensor depends on. Going back through the log, a storage's earlier content counts until a call
    that sets all of it; a tensor object counts until the call that gives it."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._places: list[int] = []
        self._seen: set[int] = set()
        self._contents: set[int] = set()
        self._objects: set[int] = set()

    def wants_object(self, tensor: FakeTensor, before: int) -> None:
        """`tensor` itself, whatever it holds."""
        self._objects.add(id(tensor))
        place = self._log.giving.get(id(tensor))
        if place is None or place >= before:
            raise UnreplayableError("a large tensor was made in a way that leaves no trace")
        self._push(place)

    def wants_content(self, storage: int, before: int) -> None:
        """What `storage` holds before a place in the log."""
        self._contents.add(storage)
        for place in self._log.touching.get(storage, ()):
            if place < before:
                self._push(place)

    def found(self) -> Iterator[int]:
        """The places, last first."""
        while self._places:
            place = -heapq.heappop(self._places)
            note = self._log.notes[place]
            wrote = self._contents & (note.writes | note.makes)
            if not wrote and not any(one is not None and id(one) in self._objects for one in note.given):
                continue
            yield place
            for tensor in note.takes:
                self.wants_object(tensor, place)
            if wrote and (note.fills or note.makes & wrote):
                self._contents -= wrote if note.fills else note.makes
            if not note.fills:
                for storage in note.reads if wrote or not _is_view(note.function) else ():
                    self.wants_content(storage, place)

    def _push(self, place: int) -> None:
        if place not in self._seen:
            self._seen.add(place)
            heapq.heappush(self._places, -place)


def _unseen_swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """In place of what `nn.Module.to` does to fake parameters: the log would not know whose values are whose."""
    raise UnreplayableError("the model converts large parameters to another type or memory format while it is built")


def _drawn(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> torch.Tensor:
    """The generator's state before a draw, which is done to move it on; what it draws is given up."""
    generator = kwargs.get("generator")
    source = generator if isinstance(generator, torch.Generator) else torch.default_generator
    before = source.get_state()
    like = _pytree.tree_map_only(FakeTensor, _memory, (args, kwargs))
    func(*like[0], **like[1])
    return before


def _done(note: Noted, real: dict[int, torch.Tensor]) -> None:
    """Do what was noted on `real` tensors, and note what it gives among them."""
    args, kwargs = _pytree.tree_map_only(FakeTensor, lambda one: real[id(one)], (note.args, note.kwargs))
    if note.draws:
        if note.random is None:
            raise UnreplayableError("what the weights do not hold is drawn at random; give weights that hold it")
        generator = kwargs.get("generator")
        if isinstance(generator, torch.Generator):
            kwargs["generator"] = torch.Generator().set_state(note.random)
        else:
            torch.set_rng_state(note.random)
    results = _pytree.tree_leaves(note.function(*args, **kwargs))
    for fake, made in zip(note.given, results, strict=True):
        if fake is not None:
            real[id(fake)] = made


def _memory(fake: FakeTensor) -> torch.Tensor:
    """Memory of the same size and strides: what a draw takes from the generator may depend on both."""
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype)


def _is_all(tensor: FakeTensor) -> bool:
    """Whether `tensor` covers all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _is_view(function: OpOverload) -> bool:
    return any(result.alias_info is not None and not result.alias_info.is_write for result in function._schema.returns)


def _changed(function: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[torch.Tensor, ...]:
    """The tensors that the schema says are written."""
    found: list[torch.Tensor] = []
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return tuple(found)
