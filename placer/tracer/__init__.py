"""From a PyTorch model to a Graph (`capture`), and to the same graph over real weights that runs (`trace`)."""

from placer.tracer.batches import Batch, BatchLike, random_batch
from placer.tracer.capturing import capture
from placer.tracer.execution import Traced, trace
from placer.tracer.exporting import LossFunction
from placer.tracer.models import ResolvedModel, fingerprint, resolve

__all__ = [
    "Batch",
    "BatchLike",
    "LossFunction",
    "ResolvedModel",
    "Traced",
    "capture",
    "fingerprint",
    "random_batch",
    "resolve",
    "trace",
]
