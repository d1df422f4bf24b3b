"""Before launch: one rank of a plan of any size, run on fake tensors with nobody else there.

rank_classes       which ranks are alike
run                the step, and what it is held against
replica_agreement  what the devices of a replica exchange inside blocks
fake_tensors       a model and a batch without memory
fake_world         a process group without a world
"""

from placer.runtime.dry.rank_classes import rank_classes
from placer.runtime.dry.run import DryRun, DryRuns, dry_run

__all__ = ["DryRun", "DryRuns", "dry_run", "rank_classes"]
