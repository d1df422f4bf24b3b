"""Models that run parts of themselves again in backward, `torch.utils.checkpoint`, when random numbers are handed in.

Nothing is handed to what runs again: with the numbers of the first time it would compute what it did then. So nothing
runs again, and all of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch.utils import checkpoint


@contextmanager
def nothing_run_again() -> Iterator[None]:
    """In the body checkpoints of a model only run what they are given, once."""
    reentrant = mock.patch.object(checkpoint.CheckpointFunction, "apply", staticmethod(_run))
    with reentrant, mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", _around):
        yield


def _around(*_: object, **__: object) -> Iterator[None]:
    """What torch steps through before and after the function."""
    yield


def _run(function: Callable[..., object], _: bool, /, *arguments: object) -> object:
    """A reentrant checkpoint has gradients only where what it is given has."""
    trained = any(isinstance(one, torch.Tensor) and one.requires_grad for one in arguments)
    with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
        return function(*arguments)
