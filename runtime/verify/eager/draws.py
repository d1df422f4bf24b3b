"""Random numbers that are handed in: what torch draws for a model, below autograd, from a source instead.

Every draw of a forward takes the next number; the shape, type and place are those that torch's own would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from placer.errors import UsageError

_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}


class DrawSource(Protocol):
    """Where numbers come from: of draw `call` of a step, of a shape, in 64 bits."""

    @property
    def count(self) -> int:
        """Draws in a forward."""
        ...

    def uniform(self, step: int, call: int, shape: tuple[int, ...], bits: int) -> torch.Tensor:
        """From 0 to below 1, of so many bits."""
        ...

    def positive(self, step: int, call: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Between 0 and 1, never either."""
        ...

    def normal(self, step: int, call: int, shape: tuple[int, ...]) -> torch.Tensor:
        """Of mean 0 and variance 1."""
        ...

    def whole(self, step: int, call: int, shape: tuple[int, ...], low: int, high: int) -> torch.Tensor:
        """Whole numbers from `low` to below `high`."""
        ...


class HandedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The draws of one forward."""

    def __init__(self, source: DrawSource, step: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._source, self._step, self._calls = source, step, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run `func`; what it draws is overwritten by what was handed in."""
        made = func(*args, **(kwargs or {}))
        draw = _DRAWS.get(func.overloadpacket.__name__.rstrip("_")) if _draws(func) else None
        if draw is None or not isinstance(made, torch.Tensor):
            return made
        names = [formal.name for formal in func._schema.arguments]
        given = {one.name: one.default_value for one in func._schema.arguments}
        numbers = draw(self, given | dict(zip(names, args, strict=False)) | dict(kwargs or {}), made)
        self._calls += 1
        return made.copy_(numbers.to(made.device))

    def require_all_used(self) -> None:
        """Raise UsageError where the model did not draw as often as it was expected to."""
        if self._calls != self._source.count:
            raise UsageError(
                f"the model draws random numbers {self._calls} times in a step by itself, {self._source.count} times "
                "as captured: they cannot be given to both alike; turn them off to verify"
            )

    def uniform(self, given: Mapping[str, Any], made: torch.Tensor) -> torch.Tensor:
        """From `from` to `to`, 0 to 1 where that is not said."""
        bits = _BITS.get(made.dtype.to_real(), 53)
        low, high = given.get("from", 0.0), given.get("to", 1.0)
        numbers = self._source.uniform(self._step, self._calls, _parts(made), bits)
        if made.is_complex():
            return torch.view_as_complex(numbers)
        spread: torch.Tensor = numbers.to(made.dtype).double() * (high - low) + low
        return spread

    def normal(self, given: Mapping[str, Any], made: torch.Tensor) -> torch.Tensor:
        """Of a mean and a deviation, 0 and 1 where they are not said."""
        mean, deviation = (
            value.detach().cpu().to(_widest(value)) if isinstance(value, torch.Tensor) else value
            for value in (given.get("mean", 0.0), given.get("std", 1.0))
        )
        numbers = self._source.normal(self._step, self._calls, _parts(made))
        if made.is_complex():
            numbers = torch.view_as_complex(numbers) * 0.5**0.5
        spread: torch.Tensor = numbers * deviation + mean
        return spread

    def whole(self, given: Mapping[str, Any], made: torch.Tensor) -> torch.Tensor:
        """From `low`, 0 where it is not said, to below `high`."""
        return self._source.whole(self._step, self._calls, tuple(made.shape), given.get("low", 0), given["high"])

    def chosen(self, given: Mapping[str, Any], made: torch.Tensor) -> torch.Tensor:
        """1 with the probability `p`, or what the tensor says."""
        chance = given["p"] if "p" in given else given["self"].detach().cpu().double()
        chosen: torch.Tensor = self._source.uniform(self._step, self._calls, tuple(made.shape), 53) < chance
        return chosen

    def waited(self, given: Mapping[str, Any], made: torch.Tensor) -> torch.Tensor:
        """Exponential numbers of a rate."""
        waited: torch.Tensor = -self._source.positive(self._step, self._calls, tuple(made.shape)).log() / given["lambd"]
        return waited


def _parts(made: torch.Tensor) -> tuple[int, ...]:
    """The shape of real numbers that `made` takes: two for each complex one."""
    return (*made.shape, 2) if made.is_complex() else tuple(made.shape)


def _widest(value: torch.Tensor) -> torch.dtype:
    return torch.complex128 if value.is_complex() else torch.float64


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


_DRAWS: dict[str, Callable[[HandedDraws, Mapping[str, Any], torch.Tensor], torch.Tensor]] = {
    "rand": HandedDraws.uniform,
    "rand_like": HandedDraws.uniform,
    "uniform": HandedDraws.uniform,
    "randn": HandedDraws.normal,
    "randn_like": HandedDraws.normal,
    "normal": HandedDraws.normal,
    "randint": HandedDraws.whole,
    "randint_like": HandedDraws.whole,
    "bernoulli": HandedDraws.chosen,
    "exponential": HandedDraws.waited,
}
