"""Random calls for the tests of split rules: sizes drawn by Hypothesis, tensors in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from split_ranks import Case, checked

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Random sizes of one example."""

    data: st.DataObject

    def pick(self, *options: T) -> T:
        """One of the options."""
        return self.data.draw(st.sampled_from(options))

    def size(self, *options: int) -> int:
        """One of the options, or a size that some degrees divide."""
        return self.pick(*(options or (1, 2, 3, 4, 6, 8)))

    def sizes(self, count: int) -> tuple[int, ...]:
        """That many sizes."""
        return tuple(self.size() for _ in range(count))

    def floats(self, rank: int) -> torch.Tensor:
        """A tensor of that many random dims."""
        return floats(*self.sizes(rank))

    def dim(self, rank: int) -> int:
        """A dim, counted from either end."""
        return self.data.draw(st.integers(-rank, rank - 1))

    def flag(self) -> bool:
        """A truth value."""
        return self.data.draw(st.booleans())

    def broadcast(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two positive tensors that broadcast against each other."""
        shape = self.sizes(self.size(1, 2, 3, 4))
        other = tuple(self.pick(1, size) for size in shape)[self.size(0, 1) :]
        return positive(*shape), positive(*other)


Builder = Callable[[Sizes], Case]


def floats(*shape: int) -> torch.Tensor:
    """Random numbers that require gradients."""
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def plain(*shape: int) -> torch.Tensor:
    """Random numbers without gradients."""
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> torch.Tensor:
    """Random numbers away from 0 that require gradients."""
    return torch.rand(shape, dtype=torch.float64).add_(0.5).requires_grad_()


def ids(high: int, *shape: int) -> torch.Tensor:
    """Random whole numbers below `high`."""
    return torch.randint(0, high, shape)


def case(function: Callable[..., object], *args: object, **kwargs: object) -> Case:
    """A call to check."""
    return Case(function=function, args=args, kwargs=kwargs)


def pieces_agree(build: Builder, examples: int = 10) -> None:
    """Every choice of the calls that `build` makes, done by 2 to 4 ranks, gives what the whole op gives."""

    done: set[str] = set()

    @settings(max_examples=examples, derandomize=True)
    @given(data=st.data(), degree=st.integers(2, 4), seed=st.integers(0, 99))
    def agree(data: st.DataObject, degree: int, seed: int) -> None:
        torch.manual_seed(seed)
        done.update(checked(build(Sizes(data)), degree, seed))

    agree()
    assert done - {"whole", "deferred"}, "no example could be cut"
