"""Random numbers of a model's initialiser: the same in every process that builds it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch

# What numpy.random.seed takes.
_SEEDS_OF_NUMPY = 2**32


@contextlib.contextmanager
def drawing_alike(seed: int) -> Iterator[None]:
    """In the body the generators that programs share, torch's on the CPU, Python's and numpy's, begin at `seed`;
    after it they are as they were."""
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % _SEEDS_OF_NUMPY)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
