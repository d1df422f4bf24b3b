"""Numbers of rows that a block takes from another one: whether they are such, which a class of blocks cannot say.

A block that puts the inverse of an order together on pieces (`own_orders`) writes the numbers of its rows, which many
models count once for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.graph import Block, Graph
from placer.plans.plan import Split
from placer.rules.calls import MARKED_ROWS
from placer.rules.graph_calls import call_of, tensor_arguments
from placer.rules.splits.own_orders import COPIES, counts_all
from placer.rules.two_axis_layouts import axis_names

WRITTEN = 2


def borrowed_numbers(graph: Graph, splits: Sequence[Split | None]) -> str:
    """Which op of which block writes other numbers than those of rows in an order of a rank's own; "" where none."""
    for block in graph.blocks:
        split, kind = splits[block.kind], graph.classes[block.kind]
        for op, choice in zip(kind.ops, () if split is None else split.choices, strict=False):
            if "index_put" not in op.target or "own order" not in axis_names(choice):
                continue
            if not _counted(graph, block, tensor_arguments(op)[WRITTEN]):
                return f"{op.name} of {block.name} writes, by an order of rows, numbers that are not those of the rows"
    return ""


def _counted(graph: Graph, block: Block, reference: str) -> bool:
    """Whether a value of a block is an `arange`, or a copy of one, whichever block made it."""
    kind = graph.classes[block.kind]
    if reference.startswith("i"):
        source = block.inputs[int(reference[1:])]
        if not source.startswith("b"):
            return False
        number, output = source[1:].split(".")
        maker = graph.prologue if number == "-1" else graph.blocks[int(number)]
        return _counted(graph, maker, graph.classes[maker.kind].outputs[int(output)])
    if not reference.startswith("o"):
        return False
    op = kind.ops[int(reference[1:].split(".")[0])]
    call = call_of(kind, op, MARKED_ROWS)
    name = call.name.rstrip("_")
    if name == "arange":
        return counts_all(call)
    return name in COPIES and _counted(graph, block, tensor_arguments(op)[0])
