"""What rules are written over: `Call` (an operator with shapes) in, `Work` (products and FLOPs) out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeAlias

# A prime that no other size is a multiple of: at this batch, dims that hold rows are told apart from all others.
MARKED_ROWS = 1_000_003


class Value(NamedTuple):
    """A tensor argument or result: its shape, bytes per element, whether a gradient flows through it."""

    shape: tuple[int, ...]
    item_bytes: int = 4
    requires_grad: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * self.item_bytes


Argument: TypeAlias = "Value | int | float | bool | str | tuple[Argument, ...] | None"


class MatrixProduct(NamedTuple):
    """`batch` products of an m x k by a k x n matrix."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """2 * batch * m * n * k."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a call computes: matrix products, and FLOPs that are no matrix product (`other_*`)."""

    forward: tuple[MatrixProduct, ...] = ()
    backward: tuple[MatrixProduct, ...] = ()
    other_forward_flops: int = 0
    other_backward_flops: int = 0

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass."""
        return sum(product.flops for product in self.forward) + self.other_forward_flops

    @property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass: only gradients that somebody needs."""
        return sum(product.flops for product in self.backward) + self.other_backward_flops


@dataclass(frozen=True, kw_only=True)
class Call:
    """An operator as a rule sees it. `target` is like `aten::linear`, without the overload."""

    target: str
    arguments: tuple[Argument, ...] = ()
    keywords: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        """The target without its namespace."""
        return self.target.rpartition("::")[2]

    @property
    def pure_name(self) -> str:
        """The name of the op of torch (or of transformers) that computes the same and does not write into its argument;
        "" for those of other libraries, whose names say nothing."""
        if self.target.rpartition("::")[0] not in ("aten", "transformers"):
            return ""
        return self.name if self.name.endswith("__") else self.name.rstrip("_")

    @cached_property
    def tensors(self) -> tuple[Value, ...]:
        """The tensor arguments in order of appearance, nested lists flattened, keywords last."""
        return tuple(_tensors((*self.arguments, *(value for _, value in self.keywords))))

    def with_tensors(self, tensors: Iterable[Value], outputs: tuple[Value, ...]) -> Call:
        """The call with other tensor arguments, in order of appearance, and other results."""
        values = iter(tensors)
        return replace(
            self,
            arguments=tuple(_filled(argument, values) for argument in self.arguments),
            keywords=tuple((name, _filled(argument, values)) for name, argument in self.keywords),
            outputs=outputs,
        )

    def tensor(self, position: int) -> Value:
        """The tensor at `position`; raises TypeError where something else stands there."""
        found = self.arguments[position]
        if not isinstance(found, Value):
            raise TypeError(f"argument {position} of {self.target} is {found!r}, not a tensor")
        return found

    def argument(self, position: int, name: str, default: Argument = None) -> Argument:
        """The argument at `position` or given by `name`, else `default`."""
        if position < len(self.arguments):
            return self.arguments[position]
        return dict(self.keywords).get(name, default)


Rule = Callable[[Call], Work]


def _tensors(arguments: tuple[Argument, ...]) -> Iterator[Value]:
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, tuple):
            yield from _tensors(argument)


def _filled(argument: Argument, values: Iterator[Value]) -> Argument:
    """An argument with the next values in place of its tensors."""
    if isinstance(argument, Value):
        return next(values)
    return tuple(_filled(part, values) for part in argument) if isinstance(argument, tuple) else argument


def gradients(left: Value, right: Value, *, batch: int, m: int, n: int, k: int) -> Work:
    """The work of `batch` products left (m x k) by right (k x n), with the gradient of each side that requires one."""
    left_gradient = (MatrixProduct(batch, m, k, n),) if left.requires_grad else ()
    right_gradient = (MatrixProduct(batch, k, n, m),) if right.requires_grad else ()
    return Work(forward=(MatrixProduct(batch, m, n, k),), backward=left_gradient + right_gradient)
