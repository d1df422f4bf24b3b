"""A module called with a state in the place of its own, and whether it then gives what it gives by itself.

A run calls an opaque part with the weights of the step in the place of the module's parameters, which are others. A
part that keeps its parameters elsewhere, or whose backward runs its modules again, reads the module's own then, and
gives those the gradients.

    difference = gradients, buffers and results of the module by itself
                 against those of the same module with other parameters, called with the first one's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.utils import _pytree

from placer.tracer.export.torchs_own.checkpoints import checkpoints_run_once

#: Positional arguments and keywords.
Arguments = tuple[tuple[object, ...], dict[str, object]]

# How near two gradients must be, relative to the largest of all: sums in another order leave less.
ALIKE = 1e-4
# The least that is a gradient, and no rounding.
NOTHING = 1e-9
_INPUTS, _RESULTS = "the inputs", "the results"


def called_with(module: nn.Module, state: dict[str, torch.Tensor], arguments: Arguments) -> object:
    """What forward gives with these parameters and buffers, without the module's hooks.

    What it writes in place is in the tensors of `state`, what it assigns anew another tensor there.
    """
    own = {f"part.{name}": tensor for name, tensor in state.items()}
    with checkpoints_run_once():
        made: object = torch.func.functional_call(_Forward(module), own, *arguments)
    state.update((name, own[f"part.{name}"]) for name in state)
    return made


class _Forward(nn.Module):
    """The forward of a part, without its hooks: these were exported."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, *arguments: object, **keywords: object) -> object:
        """What the part gives."""
        return self.part.forward(*arguments, **keywords)


def unlike_by_itself(
    module: nn.Module, given: Sequence[torch.Tensor], arguments: Callable[[list[torch.Tensor]], Arguments]
) -> list[str]:
    """The parameters and buffers of which the two are not alike, `the inputs` and `the results` among them.

    The module is left with other parameters. arguments: of the call with these tensors in the place of `given`.
    """
    module.zero_grad()
    state, leaves = _copied(module), _leaves(given)
    plain, keywords = arguments(leaves)
    first = _left(module.forward(*plain, **keywords), leaves)
    first |= _of_state(dict((*module.named_parameters(), *module.named_buffers())))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(-2)
    leaves = _leaves(given)
    second = _left(called_with(module, state, arguments(leaves)), leaves) | _of_state(state)
    return _unlike(first, second)


def _copied(module: nn.Module) -> dict[str, torch.Tensor]:
    parameters = {
        name: nn.Parameter(one.detach().clone(), requires_grad=one.requires_grad)
        for name, one in module.named_parameters()
    }
    return {**parameters, **{name: one.detach().clone() for name, one in module.named_buffers()}}


def _of_state(state: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Gradients of parameters, and buffers."""
    return {
        name: [_gradient(one) if isinstance(one, nn.Parameter) else one.detach().clone()] for name, one in state.items()
    }


def _leaves(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a call is given, which draws what the one before drew."""
    torch.manual_seed(0)
    return [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in given]


def _left(made: object, leaves: Sequence[torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """What a call gives, and what its backward leaves at its inputs."""
    results = [one for one in _pytree.tree_leaves(made) if isinstance(one, torch.Tensor)]
    trained = [one for one in results if one.requires_grad]
    if trained:
        torch.autograd.backward(trained, [torch.ones_like(one) for one in trained])
    return {_RESULTS: [one.detach() for one in results], _INPUTS: [_gradient(leaf) for leaf in leaves]}


def _gradient(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.to_dense().clone()


def _unlike(first: Mapping[str, list[torch.Tensor]], second: Mapping[str, list[torch.Tensor]]) -> list[str]:
    """Gradients are held to the largest of all: those of rounding alone differ as they like."""
    largest = max((_size(one) for name, found in first.items() if name != _RESULTS for one in found), default=0.0)
    return [
        name
        for name, found in first.items()
        if not all(map(lambda one, other: _alike(one, other, largest), found, second[name]))
    ]


def _alike(one: torch.Tensor, other: torch.Tensor, largest: float) -> bool:
    if one.shape != other.shape or (_size(one) > NOTHING * largest and not other.any()):
        return False
    return not one.numel() or _size(_plain(one) - _plain(other)) <= ALIKE * max(largest, _size(one))


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(tensor.detach().to(torch.complex128))


def _size(tensor: torch.Tensor) -> float:
    return float(_plain(tensor).abs().max()) if tensor.numel() else 0.0
