"""Running an opaque part on this machine, to see the shapes of its results and what it costs.

A copy of the part with small random weights is run on zeros of the inputs' shapes, once for each number of rows; a
straight line through what was seen tells the rest. A part that cannot take zeros (one that looks for what differs) is
run on small numbers, and one that takes none of these (it has lengths among them) on ones.
"""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.utils import _pytree
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from placer.errors import CaptureError, UncapturableError
from placer.io.one_device import ranks_asked_for
from placer.io.usercode import said, source_line
from placer.rules.opaque import Counted, OpaqueCost, state_cost
from placer.tracer.export.state.alike_runs import alike, require_no_counts, unlike_sizes
from placer.tracer.export.state.called_by_state import unlike_by_itself
from placer.tracer.export.state.model_values import of_kind, values_of
from placer.tracer.export.state.tried_copies import numbers, others, tried_copy, twos
from placer.tracer.export.torchs_own.checkpoints import checkpoints_run_once
from placer.tracer.export.torchs_own.outside import forget_compiled, outside_the_export
from placer.tracer.export.torchs_own.saved import Saved

SEED = 0
RUNS = 5
# Stands for a tensor among the leaves of a call.
HERE = object()


@dataclass(frozen=True, slots=True)
class Way:
    """How a part is tried: its FLOPs counted, what it keeps seen by hooks of autograd, its backward run."""

    flops: bool
    hooks: bool
    backward: bool = True


#: Derivatives that `torch.func` takes in forward run under no hooks, some operators under no count, and some have no
#: backward on a CPU (flex_attention).
WAYS = (
    Way(flops=True, hooks=True), Way(flops=True, hooks=False), Way(flops=False, hooks=False),
    Way(flops=False, hooks=False, backward=False),
)  # fmt: skip


class PartError(CaptureError):
    """A part that is to be opaque cannot be run by itself. part: its name."""

    def __init__(self, message: str, part: str) -> None:
        super().__init__(message)
        self.part = part


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What running a part showed: shapes and types of its results, FLOPs, bytes kept beside its state, forward seconds.

    Seconds are those of this machine, the least of some runs.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    forward_flops: int
    backward_flops: int
    kept: int
    seconds: float = 0.0


@dataclass(slots=True)
class OpaquePart:
    """A part that is being captured or run: the module that has its code, how it is called, what trying it showed.

    training: of each of its modules whether it trains where the model does. draws: whether it moved torch's generator
    as it was tried. writes: the buffers that it wrote then. way: the first that it could be tried in.
    """

    name: str
    module: nn.Module
    state: tuple[str, ...]
    cost: OpaqueCost
    call: _pytree.TreeSpec | None = None
    constants: tuple[object, ...] = ()
    trailing: tuple[tuple[int, ...], ...] = ()
    form: _pytree.TreeSpec | None = None
    tensors: tuple[bool, ...] = ()
    training: tuple[bool, ...] = ()
    draws: bool = False
    writes: set[str] = field(default_factory=set)
    way: Way = WAYS[0]
    tried: dict[int, Tried] = field(default_factory=dict)

    def results(self, rows: int) -> Tried:
        """What a call whose first input has `rows` rows gives: on the line through what was tried."""
        if rows in self.tried:
            return self.tried[rows]
        (low, one), (high, other) = (sorted(self.tried.items()) * 2)[:2]

        def at(first: int, second: int) -> int:
            return first if low == high else first + (second - first) * (rows - low) // (high - low)

        return Tried(
            shapes=tuple(tuple(map(at, first, second)) for first, second in zip(one.shapes, other.shapes, strict=True)),
            dtypes=one.dtypes,
            forward_flops=at(one.forward_flops, other.forward_flops),
            backward_flops=at(one.backward_flops, other.backward_flops),
            kept=at(one.kept, other.kept),
        )


def try_part(part: OpaquePart, inputs: list[torch.Tensor]) -> None:
    """Run a copy of the part on this machine once for this number of rows; tell the rules what it costs.

    Once more where gradients are off, as in an evaluation: there it must give tensors of the same sizes.
    """
    rows = rows_of(inputs)
    if rows not in part.tried:
        if not part.tried:
            part.training = tuple(module.training for module in part.module.modules())
            _require_same_again(part, inputs)
        found = _tried(part, inputs)
        if not part.tried:
            _require_sizes(part, inputs, found)
        part.tried[rows] = found
    elif not torch.is_grad_enabled():
        form, tensors, now = part.form, part.tensors, _tried(part, inputs)
        if (form, tensors, now.shapes, now.dtypes) != (
            part.form, part.tensors, part.tried[rows].shapes, part.tried[rows].dtypes
        ):  # fmt: skip
            part.form, part.tensors = form, tensors
            raise CaptureError(f"{part.name} is opaque and gives other tensors there than in training")
    first, other = sorted(part.tried)[0], sorted(part.tried)[-1]
    state_cost(part.name, _counted(part, first, other))


def _tried(part: OpaquePart, inputs: list[torch.Tensor]) -> Tried:
    first: Exception | None = None
    with outside_the_export(), torch.random.fork_rng(devices=()):
        for way in WAYS[WAYS.index(part.way) :]:
            if not (way.backward or way == part.way or isinstance(first, NotImplementedError)):
                break
            for filled in (torch.zeros, numbers, torch.ones):
                try:
                    found = _run(part, inputs, filled, way)
                    if filled is torch.ones:
                        shapes = _run(part, inputs, twos, way).shapes
                        if told := unlike_sizes(part.name, "all are 1", found.shapes, "they are 2", shapes):
                            raise UncapturableError(told)
                except UncapturableError:
                    raise
                except Exception as error:
                    # Else what failed lies in memory, weights too, until an export ends and garbage is collected.
                    traceback.clear_frames(error.__traceback__)
                    first = error if filled is torch.zeros else first
                else:
                    part.way = way
                    return found
                finally:
                    forget_compiled()
    assert first is not None
    line = source_line(first)
    told = f"{part.name} is to be opaque, and running it on zeros to see what it gives raised {said(first)}"
    told += f" at {line}; correct that line, or, where it is right for other numbers," if line else ";"
    raise PartError(f"{told} make a part around it opaque", part.name) from first


def _require_sizes(part: OpaquePart, inputs: list[torch.Tensor], found: Tried) -> None:
    """Raise PartError where a part gives tensors of other sizes for other numbers than it was tried on: zeros are all
    alike, and select all or none. A part that cannot take the others is not asked."""
    with outside_the_export(), torch.random.fork_rng(devices=()):
        for filled, then in ((numbers, "they differ"), (others, "they differ otherwise")):
            try:
                shapes = _run(part, inputs, filled, part.way).shapes
            except CaptureError:
                raise
            except Exception as error:
                traceback.clear_frames(error.__traceback__)
            else:
                if told := unlike_sizes(part.name, "they are alike", found.shapes, then, shapes):
                    raise PartError(told, part.name)
            finally:
                forget_compiled()


def _require_same_again(part: OpaquePart, inputs: Sequence[torch.Tensor]) -> None:
    """Raise UncapturableError where a part gives something else when it is called again with the same numbers and
    buffers: a step is several calls, on several devices. A part that cannot take such numbers is not asked."""
    with outside_the_export(), torch.random.fork_rng(devices=()), torch.enable_grad():
        torch.manual_seed(SEED)
        module = tried_copy(part.module)
        state, before = _state_of(module), of_kind(module, torch.Tensor)
        for filled in (numbers, torch.ones):
            given = [filled(tuple(t.shape), dtype=t.dtype) for t in inputs]
            try:
                first = _called(part, module, given, state)
                part.writes |= _written(part, module, state)
                left = values_of(module)
                break
            except UncapturableError:
                raise
            except Exception:  # `_tried` tells what it raises on zeros
                continue
        else:
            return
        second: list[object] = []
        with contextlib.suppress(Exception):
            second = _called(part, module, given, state)
        require_no_counts(part.name, left, values_of(module))
        if len(first) == len(second) and all(map(alike, first, second)):
            _require_what_a_run_gives(part, module, given)
            return
    kept = sorted(name for name, tensor in of_kind(module, torch.Tensor).items() if before.get(name) is not tensor)
    raise UncapturableError(
        f"{part.name} is opaque and gives other results when it is called again with the same numbers: "
        f"{'it keeps ' + ', '.join(kept) + ' from one call to the next' if kept else 'it draws numbers of its own'}; a "
        "step is several calls on several devices: keep nothing between them but buffers, draw by torch's generator"
    )


def _require_what_a_run_gives(part: OpaquePart, module: nn.Module, given: list[torch.Tensor]) -> None:
    """Raise UncapturableError where a part that is called with weights in the place of its own, as a run calls it,
    gives something else or leaves other gradients or buffers."""
    unlike: list[str] = []
    with contextlib.suppress(Exception):
        unlike = unlike_by_itself(module, given, partial(arguments_of, part))
    if unlike:
        raise UncapturableError(
            f"{part.name} is opaque, and a run, which calls it with the weights of a step in the place of its own, "
            f"would find others than it gives by itself for {', '.join(unlike[:3])}: its backward runs its modules "
            "again, or it keeps its parameters elsewhere; give an autograd.Function the weights as arguments and "
            "return their gradients, read parameters by the modules' attributes, and leave running again to placer "
            "(--pin recompute=yes)"
        )


def _called(
    part: OpaquePart, module: nn.Module, given: list[torch.Tensor], state: dict[str, torch.Tensor]
) -> list[object]:
    """What a call gives by a state of parameters and buffers, and the gradients of what it was given."""
    with torch.no_grad():
        for name, tensor in state.items():
            owner, _, key = name.rpartition(".")
            tensors = vars(module.get_submodule(owner))
            (tensors["_buffers"] if key in tensors["_buffers"] else tensors["_parameters"])[key].copy_(tensor)
    torch.manual_seed(SEED)
    leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in given]
    arguments, keywords = arguments_of(part, leaves)
    made: list[object] = _pytree.tree_leaves(module(*arguments, **keywords))
    trained = [one for one in made if isinstance(one, torch.Tensor) and one.requires_grad]
    with ranks_asked_for() as asked:
        if trained:
            torch.autograd.backward(trained, [torch.ones_like(one) for one in trained])
    if asked:
        raise UncapturableError(
            f"{part.name} is opaque and its backward asks torch.distributed for ranks, which it hears of in a run and "
            "not by itself; ask in forward, where a model hears of none"
        )
    return [*made, *(leaf.grad for leaf in leaves)]


def _state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of its parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in (*module.named_parameters(), *module.named_buffers())}


def _written(part: OpaquePart, module: nn.Module, state: Mapping[str, torch.Tensor]) -> set[str]:
    """The buffers that are not as `state` has them. Raises UncapturableError for one of another shape or type."""
    now = {name: tensor for name, tensor in module.named_buffers() if name in state}
    for name, tensor in now.items():
        before = state[name]
        if (tensor.shape, tensor.dtype) != (before.shape, before.dtype):
            raise UncapturableError(
                f"{part.name} is opaque and makes of its buffer {name}, {tuple(before.shape)} {before.dtype}, one of "
                f"{tuple(tensor.shape)} {tensor.dtype}: a run has one place for it; keep its size and type"
            )
    return {name for name, tensor in now.items() if not torch.equal(tensor, state[name])}


def _run(part: OpaquePart, inputs: list[torch.Tensor], filled: Callable[..., torch.Tensor], way: Way) -> Tried:
    torch.manual_seed(SEED)
    module = tried_copy(part.module)
    given = [
        filled(tuple(t.shape), dtype=t.dtype).requires_grad_(t.is_floating_point() and t.requires_grad) for t in inputs
    ]
    keeping = Saved((*module.parameters(), *module.buffers()))
    gradients = torch.set_grad_enabled(way.backward and torch.is_grad_enabled())
    hooks = keeping.watching() if way.hooks else contextlib.nullcontext()
    with gradients, _counting(way) as forward, hooks, checkpoints_run_once():
        arguments, keywords = arguments_of(part, given)
        before, state = torch.get_rng_state(), _state_of(module)
        made = module(*arguments, **keywords)
        part.draws = part.draws or not torch.equal(torch.get_rng_state(), before)
        part.writes |= _written(part, module, state)
    leaves, part.form = _pytree.tree_flatten(made)
    part.tensors = tuple(leaf is not None for leaf in leaves)
    results = [leaf for leaf in leaves if leaf is not None]
    other = next((result for result in results if not isinstance(result, torch.Tensor)), None)
    if other is not None:
        raise TypeError(f"it returns a {type(other).__name__}; an opaque part returns tensors, in tuples and dicts too")
    trained = [result for result in results if result.requires_grad]
    size = keeping.bytes if way.hooks else keeping.bytes_behind(trained if way.backward else (*given, *results))
    with _counting(way) as backward:
        if trained:
            torch.autograd.backward(trained, [torch.ones_like(result) for result in trained])
    guess = 0 if way.flops else _products(module, given)
    return Tried(
        shapes=tuple(tuple(result.shape) for result in results), dtypes=tuple(result.dtype for result in results),
        forward_flops=forward.get_total_flops() + guess, backward_flops=backward.get_total_flops() + 2 * guess,
        kept=size, seconds=_timed(part, module, given) if part.cost.timed else 0.0,
    )  # fmt: skip


def _products(module: nn.Module, given: Sequence[torch.Tensor]) -> int:
    """FLOPs of each weight's product with the places of the first input, where they cannot be counted: its rows, or
    its integers, one each."""
    places = math.prod(given[0].shape[:-1] if given[0].is_floating_point() else given[0].shape)
    return 2 * places * sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)


@contextlib.contextmanager
def _counting(way: Way) -> Iterator[FlopCounterMode]:
    counter = _flops()
    with counter if way.flops else contextlib.nullcontext():
        yield counter


def _flops() -> FlopCounterMode:
    """A count of all FLOPs, not by module: torch's tracker of modules hooks gradients, which no derivative in forward
    takes."""
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = cast(ModuleTracker, _Everywhere())
    return counter


class _Everywhere(contextlib.nullcontext[None]):
    parents = frozenset({"Global"})


def _timed(part: OpaquePart, module: nn.Module, given: list[torch.Tensor]) -> float:
    """The least of some runs, in seconds."""
    arguments, keywords = arguments_of(part, given)
    found = []
    for _ in range(RUNS):
        began = time.perf_counter()
        module(*arguments, **keywords)
        found.append(time.perf_counter() - began)
    return min(found)


def _counted(part: OpaquePart, low: int, high: int) -> Counted:
    """The stated cost, or the line through what was counted."""
    cost, seconds = part.cost, None
    if cost.timed or cost.seconds is not None:
        # Seconds grow with the rows, from nothing: so few rows tell no slope.
        seconds = (0.0, cost.seconds if cost.seconds is not None else part.tried[high].seconds / max(1, high))
    if cost.flops is not None:
        return Counted(forward=(cost.fixed, cost.flops), backward=(2 * cost.fixed, 2 * cost.flops), seconds=seconds)
    first, second = part.tried[low], part.tried[high]

    def line(at_low: int, at_high: int) -> tuple[int, int]:
        slope = (at_high - at_low) // (high - low) if high > low else 0
        return at_low - slope * low, slope

    forward = line(first.forward_flops, second.forward_flops)
    return Counted(forward=forward, backward=line(first.backward_flops, second.backward_flops), seconds=seconds)


def rows_of(inputs: Sequence[torch.Tensor]) -> int:
    """Rows of a call with these tensors."""
    return int(inputs[0].shape[0]) if inputs[0].dim() else 1


def arguments_of(part: OpaquePart, inputs: list[torch.Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
    """The call's arguments with `inputs` in the places of its tensors."""
    assert part.call is not None
    left = iter(inputs)
    leaves = [next(left) if leaf is HERE else leaf for leaf in part.constants]
    arguments, keywords = _pytree.tree_unflatten(leaves, part.call)
    return arguments, keywords
