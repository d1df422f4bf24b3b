"""From a PyTorch model to a Graph (`capture`), and to the same graph over real weights that runs (`trace`)."""

from placer.rules.coverage import Coverage, Uncovered, coverage
from placer.tracer.capturing import capture
from placer.tracer.export.exporting import LossFunction
from placer.tracer.inputs.batches import Batch, BatchLike, random_batch
from placer.tracer.inputs.models import ResolvedModel, fingerprint, resolve
from placer.tracer.traced_model import STANDS_FOR, Traced, trace

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
