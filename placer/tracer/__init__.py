"""From a PyTorch model to a Graph (`capture`), and to the same graph over real weights that runs (`trace`)."""

from placer.tracer.batches import Batch, random_batch
from placer.tracer.capturing import capture
from placer.tracer.execution import Traced, trace
from placer.tracer.models import ResolvedModel, fingerprint, resolve

__all__ = ["Batch", "ResolvedModel", "Traced", "capture", "fingerprint", "random_batch", "resolve", "trace"]
