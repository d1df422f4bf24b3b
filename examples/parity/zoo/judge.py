"""Judge: what the plain loop makes of an entry in each precision, and whether a run is equal to that."""

from __future__ import annotations

from functools import cache, cached_property

import torch

from examples.parity.zoo.comparing import CAST, EXACT, LAST_BITS, differences, rounding_differences
from examples.parity.zoo.eager import Numbers, Rule, adds_up, trained
from examples.parity.zoo.entry import Batch, Entry

STEPS = 3
# Pieces by which a model shows whether its batch may be divided.
PIECES = (4, 3, 1)
# Under autocast weights are float32.
DTYPES = {"float64": torch.float64, "bfloat16": torch.bfloat16}


class Judge:
    """The plain loop's numbers of one model, by precision."""

    def __init__(self, one: Entry, seed: int) -> None:
        self.entry = one
        self.batches = [one.made(1000 * seed + step) for step in range(STEPS)]
        self.expected = cache(self._expected)

    @cached_property
    def divides(self) -> bool:
        """Whether the rows of a batch may be divided and nothing but rounding changes."""
        one = self.entry
        return sum(PIECES) == one.rows and all(adds_up(one.build, batch, one.loss, PIECES) for batch in self.batches)

    def runs(self, precision: str) -> bool:
        """Whether the plain loop runs in a precision: many models do not in 16 bits."""
        try:
            self.expected(precision)
        except RuntimeError:
            return False
        return True

    def given(self, precision: str) -> list[Batch]:
        """The batches in the plan's type."""
        dtype = DTYPES.get(precision, torch.float32)
        return [
            {name: one.to(dtype) if one.is_floating_point() else one for name, one in batch.items()}
            for batch in self.batches
        ]

    def _expected(self, precision: str, nudged: int = 0) -> Numbers:
        settings = self.entry.settings
        rule = Rule(
            name=settings.optimizer, learning_rate=settings.learning_rate, betas=settings.betas,
            epsilon=settings.epsilon, weight_decay=settings.weight_decay, momentum=settings.momentum,
            clip=settings.clip_norm, autocast=precision == "bfloat16-autocast",
        )  # fmt: skip
        dtype = DTYPES.get(precision, torch.float32)
        return trained(self.entry.build, self.batches, self.entry.loss, rule, dtype, nudged=nudged)

    def difference(self, found: Numbers, precision: str) -> str:
        """What is unlike the plain loop; "" where nothing is."""
        wanted = self.expected(precision)
        if precision == "float64":
            return differences(found, wanted, CAST if self.entry.casts else EXACT)
        others = [self.expected("float64"), *(self.expected(precision, seed) for seed in (1, 2, 3))]
        return rounding_differences(found, wanted, others, LAST_BITS[precision])
