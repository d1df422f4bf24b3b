"""An op cut along an axis, run by simulated ranks in one process, against the whole op: values and gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree

from local_runs import run_local
from placer.rules import Argument, Call, Value
from placer.rules.layouts import PARTIAL, WHOLE, Choice, Cut, Lay, LocalOp, State, piece, ranges, wanted
from placer.rules.splits import localise, split_choices
from placer.runtime.spmd import Axis

Function = Callable[..., object]
TOLERANCE = 1e-9


class WrongSplitError(AssertionError):
    """The pieces put together are not the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call with tensors: those of floats that require gradients get them compared."""

    function: Function
    args: tuple[object, ...]
    kwargs: dict[str, object] = field(default_factory=dict)
    target: str = ""

    @property
    def call(self) -> Call:
        """The call as rules see it."""
        with torch.no_grad():
            out = self.function(*_copied(self.args, None), **_copied(self.kwargs, None))
        given = any(tensor.requires_grad for tensor in _tensors((self.args, self.kwargs)))
        return Call(
            target=self.target or self.function._schema.name,  # type: ignore[attr-defined]
            arguments=tuple(_argument(one) for one in self.args),
            keywords=tuple((name, _argument(one)) for name, one in self.kwargs.items()),
            outputs=tuple(
                Value(tuple(one.shape), one.element_size(), given and one.is_floating_point()) for one in _tensors(out)
            ),
        )


def check(case: Case, choice: Choice, degree: int, seed: int = 0) -> None:
    """Raises WrongSplitError where `degree` ranks doing their part of `choice` differ from the whole op."""
    generator = torch.Generator().manual_seed(seed)
    call = case.call
    whole = _Run.of(case, [tensor.detach().clone() for tensor in _tensors((case.args, case.kwargs))], case.function)
    gradients = [_random(one, generator) if one.requires_grad else torch.zeros(one.shape) for one in whole.outputs]
    whole.backward(gradients)
    pieces = [
        _parts(call, choice, number, tensor, degree, generator)
        for number, tensor in enumerate(_tensors((case.args, case.kwargs)))
    ]
    states = [state.gradient for state in choice.outputs]
    given = [parted(one, lay, degree, generator) for one, lay in zip(gradients, states, strict=True)]
    axes = thread_axes(degree)
    runs: list[_Run | None] = [None] * degree

    def rank(number: int) -> None:
        local = localise(call, choice, degree, number)

        def function(*args: object, **kwargs: object) -> object:
            return run_local(local, case.function, args, kwargs, axes[number])

        run = _Run.of(case, [piece_[number] for piece_ in pieces], function)
        expected = (local.call if isinstance(local, LocalOp) else local).outputs
        _same_shapes(run.outputs, expected, choice)
        run.backward([one[number] for one in given])
        runs[number] = run

    together(rank, degree, threads=bool(choice.inner))
    done = [run for run in runs if run is not None]
    _compare_outputs(whole, done, choice, degree)
    _compare_inputs(call, whole, done, choice, degree)


def checked(case: Case, degree: int, seed: int = 0) -> list[str]:
    """Check every choice that `degree` can cut; their names."""
    call = case.call
    names = []
    for choice in split_choices(call, degree):
        check(case, choice, degree, seed)
        names.append(choice.name)
    return names


@dataclass(slots=True)
class _Run:
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]

    @staticmethod
    def of(case: Case, values: list[torch.Tensor], function: Function) -> _Run:
        originals = _tensors((case.args, case.kwargs))
        leaves = [
            value.detach().clone().requires_grad_(one.requires_grad)
            for value, one in zip(values, originals, strict=True)
        ]
        fill = iter(leaves)
        args, kwargs = _copied((case.args, case.kwargs), fill)
        # A leaf that requires gradients may not be written in place.
        return _Run(leaves, _tensors(function(*args, **kwargs)))

    def backward(self, gradients: list[torch.Tensor]) -> None:
        pairs = [(out, g) for out, g in zip(self.outputs, gradients, strict=True) if out.requires_grad]
        if pairs:
            torch.autograd.backward([out for out, _ in pairs], [g for _, g in pairs])


class ThreadAxis(Axis):
    """One rank's end of an axis whose ranks are threads."""

    def __init__(self, degree: int, rank: int, barrier: threading.Barrier, board: list[list[torch.Tensor]]):
        super().__init__(degree, rank)
        self._barrier = barrier
        self._board = board

    def all_reduce(self, tensor: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
        """The sum or maximum over the ranks."""
        stacked = torch.stack([given[0] for given in self._everyone([tensor])])
        return stacked.sum(0) if reduce == "sum" else stacked.amax(0)

    def all_to_all(self, tensor: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, list[int]]:
        """The rows that every rank sent here."""
        received = [given[self.rank] for given in self._everyone(list(torch.split(tensor, counts)))]
        return torch.cat(received), [len(rows) for rows in received]

    def _everyone(self, given: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        self._board[self.rank] = [tensor.detach() for tensor in given]
        self._barrier.wait(timeout=1800)
        every = list(self._board)
        self._barrier.wait(timeout=1800)
        return every


def thread_axes(degree: int) -> list[ThreadAxis]:
    """The ends of one axis, one for each thread."""
    barrier, board = threading.Barrier(degree), [[] for _ in range(degree)]  # type: ignore[var-annotated]
    return [ThreadAxis(degree, rank, barrier, board) for rank in range(degree)]


def together(rank: Callable[[int], None], degree: int, *, threads: bool) -> None:
    """Run every rank; those that talk to each other as threads."""
    if not threads:
        for number in range(degree):
            rank(number)
        return
    failed: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            rank(number)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(degree)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        raise next((error for error in failed if not isinstance(error, threading.BrokenBarrierError)), failed[0])


def _parts(
    call: Call, choice: Choice, number: int, tensor: torch.Tensor, degree: int, generator: torch.Generator
) -> list[torch.Tensor]:
    halo = choice.halo[number] if choice.halo else None
    if halo is None:
        return parted(tensor.detach(), choice.inputs[number].value, degree, generator)
    return [tensor.detach().narrow(halo.dim, low, high - low) for low, high in windows(call, choice, number, degree)]


def windows(call: Call, choice: Choice, number: int, degree: int) -> list[tuple[int, int]]:
    """The rows of a windowed argument that each rank reads."""
    halo, lay = choice.halo[number], choice.outputs[0].value
    assert halo is not None and isinstance(lay, Cut)
    size, made = call.tensors[number].shape[halo.dim], call.outputs[0].shape[lay.dim]
    rows = [wanted(halo, size, *piece(made, degree, rank)) for rank in range(degree)]
    return [(one.start, one.end) for one in rows]


def parted(tensor: torch.Tensor, lay: Lay, degree: int, generator: torch.Generator) -> list[torch.Tensor]:
    """What each rank holds of a tensor that lies so; summands are random."""
    if isinstance(lay, Cut):
        return [_piece(tensor, lay, degree, rank) for rank in range(degree)]
    if lay is WHOLE:
        return [tensor] * degree
    parts = [_random(tensor, generator) for _ in range(degree - 1)]
    return [*parts, tensor - sum(parts, torch.zeros_like(tensor))]


def _piece(tensor: torch.Tensor, lay: Cut, degree: int, rank: int) -> torch.Tensor:
    bounds = ranges(lay, tensor.shape[lay.dim], degree, rank)
    return torch.cat([tensor.narrow(lay.dim, start, end - start) for start, end in bounds], lay.dim)


def _compare_outputs(whole: _Run, runs: list[_Run], choice: Choice, degree: int) -> None:
    for number, state in enumerate(choice.outputs):
        made = [run.outputs[number].detach() for run in runs]
        _compare(f"result {number}", whole.outputs[number].detach(), made, state.value)


def _compare_inputs(call: Call, whole: _Run, runs: list[_Run], choice: Choice, degree: int) -> None:
    for number, state in enumerate(choice.inputs):
        halo = choice.halo[number] if choice.halo else None
        mine = whole.inputs[number]
        if halo is None and state.value is not PARTIAL:
            # Statistics are written in place.
            _compare(f"argument {number}", mine.detach(), [run.inputs[number].detach() for run in runs], state.value)
        if mine.grad is None:
            continue
        found = [_gradient(run.inputs[number]) for run in runs]
        if halo is not None:
            placed = torch.zeros_like(mine.grad)
            for (low, high), one in zip(windows(call, choice, number, degree), found, strict=True):
                placed.narrow(halo.dim, low, high - low).add_(one)
            found, state = [placed], State(PARTIAL, PARTIAL)
        _compare(f"gradient of argument {number}", mine.grad, found, state.gradient)


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


def _compare(what: str, whole: torch.Tensor, parts: list[torch.Tensor], lay: Lay) -> None:
    for one in put_together(parts, lay):
        if one.shape != whole.shape:
            raise WrongSplitError(f"{what}: shape {list(one.shape)} put together, {list(whole.shape)} whole")
        if not torch.allclose(one, whole, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise WrongSplitError(f"{what} ({lay}): differs by {(one - whole).abs().max().item():.3g}")


def put_together(parts: list[torch.Tensor], lay: Lay) -> list[torch.Tensor]:
    """The whole of what the ranks hold; of what lies whole, what each of them has."""
    if isinstance(lay, Cut):
        # Every rank's piece of the first part, then of the second, and so on.
        pieces = [torch.chunk(one, lay.parts, lay.dim) for one in parts]
        return [torch.cat([one[at] for at in range(lay.parts) for one in pieces], lay.dim)]
    return parts if lay is WHOLE else [sum(parts[1:], parts[0])]


def _same_shapes(outputs: list[torch.Tensor], expected: tuple[Value, ...], choice: Choice) -> None:
    for one, value in zip(outputs, expected, strict=True):
        if tuple(one.shape) != value.shape:
            raise WrongSplitError(
                f"{choice.name}: a rank made {list(one.shape)}, its local op says {list(value.shape)}"
            )


def _random(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if like.is_floating_point():
        return torch.randn(like.shape, dtype=like.dtype, generator=generator)
    if like.dtype == torch.bool:
        raise WrongSplitError("a truth value has no summands")
    return torch.randint(-3, 4, like.shape, dtype=like.dtype, generator=generator)


def _argument(one: object) -> Argument:
    if isinstance(one, torch.Tensor):
        return Value(tuple(one.shape), one.element_size(), one.requires_grad)
    if isinstance(one, list | tuple):
        return tuple(_argument(part) for part in one)
    return one if isinstance(one, int | float | bool | str) else None


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _copied(tree: object, fill: Iterator[torch.Tensor] | None):  # type: ignore[no-untyped-def]
    def leaf(one: object) -> object:
        if not isinstance(one, torch.Tensor):
            return one
        return one.detach().clone() if fill is None else next(fill)

    return _pytree.tree_map(leaf, tree)
