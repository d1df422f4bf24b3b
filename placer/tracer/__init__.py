"""From a PyTorch model to a Graph (`capture`), and to the same graph over real weights that runs (`trace`)."""

from placer.rules.coverage import Coverage, Uncovered, coverage
from placer.tracer.batches import Batch, BatchLike, random_batch
from placer.tracer.capturing import capture
from placer.tracer.execution import STANDS_FOR, Traced, trace
from placer.tracer.exporting import LossFunction
from placer.tracer.models import ResolvedModel, fingerprint, resolve

__all__ = [
    "STANDS_FOR",
    "Batch",
    "BatchLike",
    "Coverage",
    "LossFunction",
    "ResolvedModel",
    "Traced",
    "Uncovered",
    "capture",
    "coverage",
    "fingerprint",
    "random_batch",
    "resolve",
    "trace",
]
