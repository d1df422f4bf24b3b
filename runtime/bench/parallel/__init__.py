"""Ways to train data-parallel, compared on this machine: the same model, first weights, pictures and optimizer for all.

models    what is trained, and the pictures made for it
ways      the table; `torch_ways`, `mpi_ways`, `engines`, `tensorflow_ways` (by `tensorflow_ops`) are the trainers
turn      what a process does in a turn; `contest` gives turns; `team`, `mpi_team`, `worlds`: processes of other
          libraries
"""

from placer.runtime.bench.parallel.contest import Contest, compared
from placer.runtime.bench.parallel.models import MODELS
from placer.runtime.bench.parallel.turn import Job
from placer.runtime.bench.parallel.ways import REFERENCE, WAYS, Way

__all__ = ["MODELS", "REFERENCE", "WAYS", "Contest", "Job", "Way", "compared"]
