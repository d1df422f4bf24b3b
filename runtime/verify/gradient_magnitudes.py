"""What gradients were summed from: of a parameter that is added to many elements, the sum of the terms' magnitudes.

    gradient[j] = sum of terms[j]        magnitude[j] = sum of |terms[j]|

A bias before batch norm has gradient zero: the norm takes every constant away. What a machine computes for it is
the rounding of that sum: some units of the last place of `magnitude`, and nothing of it means anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import nn
from torch.autograd.graph import Node

# A sum of float terms in another order differs by a few units of the last place of their magnitudes.
_SAME_SUM = 64.0


class TermMagnitudes:
    """Watches the backwards of one step; `magnitudes` are of the parameters of one dim that are added to something."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._names = {id(parameter): name for name, parameter in parameters.items() if parameter.dim() == 1}
        self.magnitudes: dict[str, torch.Tensor] = {}

    def watch(self, loss: torch.Tensor) -> None:
        """Note what the backward of `loss` will sum; ends with its graph."""
        for node in _nodes(loss.grad_fn):
            for place, (source, _) in enumerate(node.next_functions):
                name = self._names.get(id(getattr(source, "variable", None)))
                if name is not None:
                    self._note(node, place, name)

    def _note(self, node: Node, place: int, name: str) -> None:
        def noted(inner: tuple[torch.Tensor, ...], outer: tuple[torch.Tensor, ...]) -> None:
            if inner[place] is not None and outer and outer[0] is not None:
                found = _magnitude(inner[place], outer[0])
                if found is not None:
                    self.magnitudes[name] = self.magnitudes.get(name, torch.zeros_like(found)) + found

        node.register_hook(cast("object", noted))  # type: ignore[arg-type]  # torch types it without results


def _magnitude(gradient: torch.Tensor, terms: torch.Tensor) -> torch.Tensor | None:
    """The magnitudes of what `gradient` is the sum of; None where it is no sum of `terms` over all dims but one."""
    found: list[torch.Tensor] = []
    for dim, size in enumerate(terms.shape):
        if size == gradient.numel() and terms.dim() > 1:
            others = [other for other in range(terms.dim()) if other != dim]
            magnitude = terms.double().abs().sum(others)
            error = (terms.double().sum(others) - gradient.double()).abs()
            if bool((error <= _SAME_SUM * torch.finfo(terms.dtype).eps * magnitude).all()):
                found.append(magnitude.cpu())
    return min(found, key=lambda magnitude: float(magnitude.max()), default=None)


def _nodes(root: Node | None) -> Iterator[Node]:
    pending, seen = [root], {root}
    while pending:
        node = pending.pop()
        if node is None:
            continue
        yield node
        for source, _ in node.next_functions:
            if source not in seen:
                seen.add(source)
                pending.append(source)
