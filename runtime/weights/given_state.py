"""Whether a state that is given to a running model is one of that model: its names, its shapes, all of it tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from placer.errors import UsageError

#: Of a tensor of a model's state; None of what is none (a module's `get_extra_state`).
Shape = tuple[int, ...] | None

SHOWN = 5


def shapes_of(state: Mapping[str, object]) -> dict[str, Shape]:
    """The shapes of what torch's state_dict holds."""
    return {name: tuple(one.shape) if isinstance(one, torch.Tensor) else None for name, one in state.items()}


def require_fitting(state: object, shapes: Mapping[str, Shape]) -> None:
    """Raise UsageError where `state`, of some names or all, is no state of a model whose state has these `shapes`.

    `Tensor.copy_` would spread a tensor of fewer numbers over a larger one. What is missing depends on the rank.
    """
    if not isinstance(state, Mapping):
        raise UsageError(f"the state is a {type(state).__name__}; give a dict of tensors, as state_dict() makes")
    unknown = [str(name) for name in state if name not in shapes]
    if unknown:
        raise UsageError(
            f"the state has {listed(unknown)}, which the model has not; give the state of the same model, or leave "
            "these out"
        )
    for name, given in state.items():
        wanted = shapes[name]
        if wanted is None:
            continue
        if not isinstance(given, torch.Tensor):
            raise UsageError(f"{name} of the state is a {type(given).__name__}; give tensors")
        if tuple(given.shape) != wanted:
            raise UsageError(
                f"{name} of the state has shape {tuple(given.shape)}, the model's has {wanted}; give the state of the "
                "same model"
            )


def listed(names: Iterable[str]) -> str:
    """The first few names."""
    every = tuple(names)
    return f"{', '.join(every[:SHOWN])}{' ...' if len(every) > SHOWN else ''}"
