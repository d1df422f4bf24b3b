"""Whether only a step tells which weights a gradient reaches: where a part of the model is not looked into.

Ranks then tell each other: in the end of a step which weights they reached, and beside the gradients that go back from
stage to stage which of them there are.
"""

from __future__ import annotations

from placer.graph import Graph
from placer.io.memo import of_last
from placer.rules.opaque import is_part


@of_last
def told_weights(graph: Graph) -> tuple[str, ...]:
    """The weights of which each step has to tell whether a gradient reached them: all, where a part that is not looked
    into has one; () otherwise, as ops say it beforehand."""
    parts = any(is_part(op) and any(output.requires_grad for output in op.outputs) for _, op in graph.ops)
    return tuple(name for name, one in graph.parameters.items() if one.trainable) if parts else ()
