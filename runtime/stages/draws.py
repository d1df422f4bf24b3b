"""Random numbers that depend on (seed, step, op, row of the global batch, element of the row) and on nothing else, so
that no layout and no second run changes them: those of `placer.rules.rows.draws.KEYED`, made here of the numbers that
dropout's masks are made of. What torch alone can draw gets a generator that is seeded alike in every layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch.autograd.function import FunctionCtx

from placer.runtime.stages.keyed_numbers import mixed, numbers
from placer.runtime.stages.pass_context import PassContext

Given = Mapping[str, object]
# Bits of a uniform number, as torch has them (DistributionsHelper.h, CPUs).
_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
_MOST_BITS = 53


def draw(op: torch._ops.OpOverload, number: int, batched: bool, *given: object, mode: PassContext) -> torch.Tensor:
    """What `op` draws, called with `given` in the order of its schema. Draw `number` of the graph; batched: dim 0 of
    the result is a whole number of entries per row, others are the same in every piece of the batch."""
    name, formal = _signature(op)
    named = dict(zip((one for one, _ in formal), given, strict=True))
    if mode.keys is None or mode.batch_key is None:
        return cast(torch.Tensor, plainly(op, given))
    keys = mode.keys if batched else mode.batch_key
    made = _sampled(name, named, number, keys)
    reached = () if name.endswith("_like") else given  # of those torch takes the shape alone
    return _reached(made, *(one for one in reached if isinstance(one, torch.Tensor) and one.requires_grad))


def draw_in_training(
    op: torch._ops.OpOverload, number: int, batched: bool, *given: object, mode: PassContext
) -> torch.Tensor:
    """The same of numbers that evaluation does not read: there torch's generator stays as it is."""
    if mode.training:
        return draw(op, number, batched, *given, mode=mode)
    named = dict(zip((one for one, _ in _signature(op)[1]), given, strict=True))
    first = next((one for one in given if isinstance(one, torch.Tensor)), None)
    device = cast("torch.device | None", named.get("device") if first is None else first.device)
    return torch.zeros(_shape(named), dtype=_dtype(named), device=device)


def joined(op: torch._ops.OpOverload, place: int, *given: object, mode: PassContext) -> torch.Tensor:
    """What `op` makes of a value, at `place`, and random numbers; in evaluation a copy of the value, which later
    ops may write in place."""
    return cast(torch.Tensor, plainly(op, given)) if mode.training else cast(torch.Tensor, given[place]).clone()


def seeded(op: torch._ops.OpOverload, number: int, flag: int | None, *given: object, mode: PassContext) -> object:
    """The same by torch's own generator, seeded for this draw of this step; as it is where nothing keys draws.

    flag: the place among `given` of what says that the op trains, which the pass knows.
    """
    told = given if flag is None else (*given[:flag], mode.training, *given[flag + 1 :])
    with seeding(number, told, mode):
        return plainly(op, told)


@contextmanager
def seeding(number: int | None, given: Iterable[object], mode: PassContext) -> Iterator[None]:
    """In the body torch's generators, also those of the devices of `given`, are seeded for draw `number` of this step;
    they are left as they were without a number or where nothing keys draws."""
    if number is None or mode.seed is None:
        yield
        return
    devices = [one.device for one in given if isinstance(one, torch.Tensor) and one.is_cuda]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed((mode.seed * 1_000_003 + number) % 2**63)
        yield


def plainly(op: torch._ops.OpOverload, given: tuple[object, ...]) -> object:
    """`op` itself, called with values in the order of its schema."""
    told = list(zip(given, _signature(op)[1], strict=True))
    positional = [value for value, (_, by_name) in told if not by_name]
    return op(*positional, **{name: value for value, (name, by_name) in told if by_name})


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch does not type it
def _signature(op: torch._ops.OpOverload) -> tuple[str, tuple[tuple[str, bool], ...]]:
    """The name of `op` without its underscore, and of each that it takes the name and whether it is given by name:
    read of its schema, which compiled code cannot."""
    name = op._schema.name.removeprefix("aten::").rstrip("_")
    return name, tuple((one.name, one.kwarg_only) for one in op._schema.arguments)


def _sampled(name: str, given: Given, number: int, keys: torch.Tensor) -> torch.Tensor:
    """What op `name` draws; of complex numbers both parts, which of normal ones have half the variance each."""
    shape, dtype = _shape(given), _dtype(given)
    if name not in _COMPLEX or not dtype.is_complex:
        return _SAMPLERS[name](numbers(shape, number, keys), given)
    bits = numbers(torch.Size((*shape, 2)), number, keys)
    if name not in _NORMAL:
        return torch.view_as_complex(_SAMPLERS[name](bits, {**given, "dtype": dtype.to_real()}))
    deviation, mean = (cast("torch.Tensor | float", given.get(*one)) for one in (("std", 1.0), ("mean", 0.0)))
    made: torch.Tensor = torch.view_as_complex(_normal(bits)) / math.sqrt(2.0) * deviation + mean
    return made.to(dtype)


def _shape(given: Given) -> torch.Size:
    tensors = [one for one in given.values() if isinstance(one, torch.Tensor)]
    if tensors:
        return torch.Size(np.broadcast_shapes(*(tuple(one.shape) for one in tensors)))
    return torch.Size(cast("list[int]", given["size"]))


def _dtype(given: Given) -> torch.dtype:
    first = next((one for one in given.values() if isinstance(one, torch.Tensor)), None)
    asked = given.get("dtype") or (None if first is None else first.dtype)
    return cast(torch.dtype, asked or torch.get_default_dtype())


def _uniform(bits: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """From 0 to below 1, of the highest bits."""
    count = _BITS.get(dtype, _MOST_BITS)
    highest: torch.Tensor = (bits >> (64 - count)) & (2**count - 1)
    made: torch.Tensor = highest.double() / 2**count
    return made.to(dtype)


def _positive(bits: torch.Tensor) -> torch.Tensor:
    """Between 0 and 1, never either."""
    highest: torch.Tensor = (bits >> (64 - _MOST_BITS)) & (2**_MOST_BITS - 1)
    made: torch.Tensor = (highest.double() + 0.5) / 2**_MOST_BITS
    return made


def _normal(bits: torch.Tensor) -> torch.Tensor:
    """Box and Muller's: a radius and an angle of two uniform numbers."""
    radius = (-2.0 * _positive(bits).log()).sqrt()
    return radius * (2.0 * math.pi * _positive(mixed(bits.clone()))).cos()


def _rand(bits: torch.Tensor, given: Given) -> torch.Tensor:
    return _uniform(bits, _dtype(given))


def _randn(bits: torch.Tensor, given: Given) -> torch.Tensor:
    return _normal(bits).to(_dtype(given))


def _randint(bits: torch.Tensor, given: Given) -> torch.Tensor:
    low, high = cast(int, given.get("low", 0)), cast(int, given["high"])
    # Of no tensor they are 64-bit; the schema says so by a number of C++'s.
    dtype = _dtype(given) if "self" in given else given["dtype"]
    return ((bits & (2**62 - 1)) % (high - low) + low).to(dtype if isinstance(dtype, torch.dtype) else torch.int64)


def _bernoulli(bits: torch.Tensor, given: Given) -> torch.Tensor:
    return (_uniform(bits) < _number(given.get("p", given["self"]))).to(_dtype(given))


def _spread(bits: torch.Tensor, given: Given) -> torch.Tensor:
    mean, deviation = (_number(given[name]) for name in ("mean", "std"))
    return (_normal(bits) * deviation + mean).to(_dtype(given))


def _between(bits: torch.Tensor, given: Given) -> torch.Tensor:
    low, high = cast(float, given["from"]), cast(float, given["to"])
    return (_uniform(bits, _dtype(given)).double() * (high - low) + low).to(_dtype(given))


def _exponential(bits: torch.Tensor, given: Given) -> torch.Tensor:
    return (-_positive(bits).log() / cast(float, given["lambd"])).to(_dtype(given))


def _number(value: object) -> torch.Tensor | float:
    return value.detach().double() if isinstance(value, torch.Tensor) else cast(float, value)


_SAMPLERS: dict[str, Callable[[torch.Tensor, Given], torch.Tensor]] = {
    "rand": _rand,
    "rand_like": _rand,
    "randn": _randn,
    "randn_like": _randn,
    "randint": _randint,
    "randint_like": _randint,
    "bernoulli": _bernoulli,
    "normal": _spread,
    "normal_functional": _spread,
    "uniform": _between,
    "exponential": _exponential,
}
_NORMAL = frozenset({"randn", "randn_like", "normal", "normal_functional"})
# What may be asked for complex numbers; others have whole ones, whose type a schema may say by a number of C++'s.
_COMPLEX = _NORMAL | {"rand", "rand_like", "uniform"}


def _reached(made: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
    """`made`, through which a gradient of zeros reaches `sources`, as torch has it, not none."""
    return _Drawn.apply(made, *sources) if sources else made  # type: ignore[no-untyped-call]


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, made: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.shapes = [(one.shape, one.dtype, one.device) for one in sources]  # type: ignore[attr-defined]
        return made.view_as(made)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        shapes = ctx.shapes  # type: ignore[attr-defined]
        if gradient is None:
            return (None, *(None for _ in shapes))
        return (None, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in shapes))
