"""What an op may do along one axis: `split_choices(call)` gives every choice, `localise` the op that a rank runs.

A rule for an op of one's own is written with `named` and added with `register_split`. Needs no torch.
"""

from placer.rules.cut_sizes import legal
from placer.rules.patterns import named
from placer.rules.registry import SplitRule, own_choices, register_split, split_choices, unregister_split
from placer.rules.splits.fused_dims import divided, in_parts
from placer.rules.splits.localise import AxisOp, cuttable, local_forms, localise

__all__ = [
    "AxisOp",
    "SplitRule",
    "cuttable",
    "divided",
    "in_parts",
    "legal",
    "local_forms",
    "localise",
    "named",
    "own_choices",
    "register_split",
    "split_choices",
    "unregister_split",
]
