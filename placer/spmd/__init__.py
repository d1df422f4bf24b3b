"""A graph as one device of a replica sees it: the ops of each block cut by rule, collectives where layouts disagree.

`conversions` says which value must change its layout for whom; the costs and the runtime both act on it. `local_graph`
is the graph of one device, so that everything that reckons with graphs reckons with cut ones.
"""

from placer.spmd.device_rows import own_rows, own_rows_class, own_rows_tensor
from placer.spmd.expert_order import APART, cut_experts, expert_devices
from placer.spmd.layout_conversions import LEAVES, Conversion, Edges, border_state, edges, keepable
from placer.spmd.local_graph import local_graph, require_layout
from placer.spmd.parameter_layouts import (
    block_edges,
    block_split,
    held_parameter,
    held_parameters,
    held_value,
    kept_whole,
    layout_state,
    parameter_states,
    rows_apart,
    summed_over,
    value_state,
)
from placer.spmd.propagation import Wishes, fits, followed

__all__ = [
    "APART",
    "LEAVES",
    "Conversion",
    "Edges",
    "Wishes",
    "block_edges",
    "block_split",
    "border_state",
    "cut_experts",
    "edges",
    "expert_devices",
    "fits",
    "followed",
    "held_parameter",
    "held_parameters",
    "held_value",
    "keepable",
    "kept_whole",
    "layout_state",
    "local_graph",
    "own_rows",
    "own_rows_class",
    "own_rows_tensor",
    "parameter_states",
    "require_layout",
    "rows_apart",
    "summed_over",
    "value_state",
]
