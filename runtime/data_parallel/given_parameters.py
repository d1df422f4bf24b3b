"""What an optimizer is made of: parameters that know their names, so that groups of them can go by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import torch
from torch import nn


class GivenParameters(Collection[nn.Parameter]):
    """The parameters that an optimizer is made for, those of one rank; `named` has them with the model's names, as
    `Module.named_parameters` does."""

    def __init__(self, named: Mapping[str, nn.Parameter]) -> None:
        self._named = dict(named)

    def __iter__(self) -> Iterator[nn.Parameter]:
        return iter(self._named.values())

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, one: object) -> bool:
        return any(one is parameter for parameter in self)

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """Each with its name."""
        return list(self._named.items())


#: Makes an optimizer of the parameters that it is given.
OptimizerFactory = Callable[[GivenParameters], torch.optim.Optimizer]
