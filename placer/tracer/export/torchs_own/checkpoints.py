"""torch's checkpoints within an opaque part, which run their body again in backward: in a run they do not.

A run calls a part with the weights of the step in the place of the module's own. Backward comes when they are gone
again: what runs the module's code then has its own numbers, and gives its own parameters the gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction


@contextlib.contextmanager
def checkpoints_run_once() -> Iterator[None]:
    """In the body a checkpoint runs what it is given, and keeps what backward wants: the same numbers."""
    with (
        mock.patch.object(CheckpointFunction, "apply", run_once),
        mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", _around),
    ):
        yield


def run_once(run: Callable[..., object], _keeps_random_state: object, *given: object) -> object:
    """torch's older way gives gradients only where an argument has one."""
    trained = any(isinstance(one, torch.Tensor) and one.requires_grad for one in given)
    with contextlib.nullcontext() if trained else torch.no_grad():
        return run(*given)


def _around(*_: object, **__: object) -> Iterator[None]:
    yield
