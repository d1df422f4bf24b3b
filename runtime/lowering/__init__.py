"""A stage cut over the devices of its replica, as one rank runs it: local ops and named collectives in plain fx graphs.

conversions   what turns a layout into another, forward, and what turns its gradient back
halo          rows of neighbours for windows
forms         ops that differ on a rank, and those the runtime rewrites (losses, dropout, batch norm)
block         the rank's form of each op of a block, written into the block's graph
talking       which nodes of such a graph talk to other ranks, and which have sizes that depend on values
pieces        pieces of parameters and buffers, put together again when they are read
"""

from placer.runtime.lowering.axis import Axis
from placer.runtime.lowering.block import LocalBlocks
from placer.runtime.lowering.pieces import Pieces
from placer.runtime.lowering.talking import talks, varying

__all__ = ["Axis", "LocalBlocks", "Pieces", "talks", "varying"]
