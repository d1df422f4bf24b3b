"""Random batches: values of the right shapes, types and ranges, with nothing to learn in them."""

from __future__ import annotations

from placer.graph import Graph
from placer.runtime.data.batches import Batch
from placer.tracer.inputs.batches import random_batch

# Seeds of training and evaluation batches lie apart; a run is shorter than this.
EVALUATION_OFFSET = 2**31


class SyntheticData:
    """Random rows for the inputs of `graph`, seeded by `seed` and position."""

    name = "synthetic"

    def __init__(self, graph: Graph, rows: int, seed: int) -> None:
        self._graph, self._rows, self._seed = graph, rows, seed

    def batch(self, position: int) -> Batch:
        """The training batch at `position`."""
        return random_batch(self._graph, self._rows, self._seed + position)

    def held_out(self, position: int) -> Batch:
        """The evaluation batch at `position`."""
        return random_batch(self._graph, self._rows, EVALUATION_OFFSET + self._seed + position)
