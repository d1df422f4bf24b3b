"""Rows of the batch as one more dim that is split: what a piece of the batch computes, from the inputs to the loss.

`row_split(graph)` says whether replicas and microbatches may each take rows of their own, what they then do otherwise
than the whole batch would, and the op that forbids it.
"""

from placer.rules.rows.graph_rows import RowSplit, row_split, whole_batch_reason
from placer.rules.rows.piece_ops import PieceOp

__all__ = ["PieceOp", "RowSplit", "row_split", "whole_batch_reason"]
