"""Initialisers that draw by Python's or numpy's shared generators give the seed's weights in every process."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn

from placer.tracer import resolve


def drawing() -> nn.Module:
    """A layer whose weights are torch's numbers times Python's, its bias numpy's."""
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.mul_(random.random())
        layer.bias.copy_(torch.from_numpy(np.random.randn(4)))
    return layer


def built(seed: int) -> list[float]:
    made = resolve("test_seeding:drawing").build("cpu", seed=seed)
    return [float(number) for tensor in made.state_dict().values() for number in tensor.flatten()]


def test_weights_depend_on_the_seed_and_on_no_state_of_the_process() -> None:
    random.seed(1)
    np.random.seed(1)
    first = built(3)
    assert built(3) == first
    other = built(4)
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_generators_that_programs_share_stay_as_they_were() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    built(3)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == expected
