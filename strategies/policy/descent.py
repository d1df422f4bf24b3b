"""Adam (arXiv:1412.6980, algorithm 1), written out: torch's own first imports its compiler, longer than a search."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Those of the paper.
FIRST, SECOND, SMALL = 0.9, 0.999, 1e-8


class Descent:
    """Steps against the gradients of some parameters; those without one stay."""

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float) -> None:
        self._parameters, self._rate, self._steps = tuple(parameters), rate, 0
        self._means = [(torch.zeros_like(one), torch.zeros_like(one)) for one in self._parameters]

    def step(self, loss: Tensor) -> None:
        """One step that lessens `loss`."""
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        self._steps += 1
        with torch.no_grad():
            for one, gradient, (mean, square) in zip(self._parameters, gradients, self._means, strict=True):
                if gradient is not None:
                    mean.mul_(FIRST).add_(gradient, alpha=1 - FIRST)
                    square.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
                    spread = (square / (1 - SECOND**self._steps)).sqrt_().add_(SMALL)
                    one.addcdiv_(mean, spread, value=-self._rate / (1 - FIRST**self._steps))
