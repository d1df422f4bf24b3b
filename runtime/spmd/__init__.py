"""A stage cut over the devices of its replica, as one rank runs it: local ops and named collectives in plain fx graphs.

conversions       what turns a layout into another, forward, and what turns its gradient back
collectives       what is sent inside of ops, rows of neighbours for windows among it
graph_ops         ops that differ on a rank, and those the runtime rewrites (losses, dropout, batch norm)
block_lowering    the rank's form of each op of a block, written into the block's graph
parameter_pieces  pieces of parameters and buffers, put together again when they are read
"""

from placer.runtime.spmd.axis import Axis
from placer.runtime.spmd.block_lowering import LocalBlocks
from placer.runtime.spmd.graph_ops import talks, varying, with_written
from placer.runtime.spmd.parameter_pieces import Pieces

__all__ = ["Axis", "LocalBlocks", "Pieces", "talks", "varying", "with_written"]
