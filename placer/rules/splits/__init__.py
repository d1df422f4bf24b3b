"""What an op may do along one axis: `split_choices(call)` gives every choice, `localise` the op that a rank runs.

Rules are written over named dims (`patterns`, and `named` for ops of one's own), a file for each family of ops, and one
table (`table`) from operator names to rules. Needs no torch.
"""

from placer.rules.splits.fused_dims import divided, in_blocks, in_parts, merged
from placer.rules.splits.local_forms import AxisOp, Localised, cuttable, local_forms
from placer.rules.splits.localise import filled, legal, localise
from placer.rules.splits.named_dims import named
from placer.rules.splits.patterns import tensors
from placer.rules.splits.registry import (
    SplitRule,
    own_choices,
    register_split,
    split_choices,
    split_rule,
    unregister_split,
)

__all__ = [
    "AxisOp",
    "Localised",
    "SplitRule",
    "cuttable",
    "divided",
    "filled",
    "in_blocks",
    "in_parts",
    "legal",
    "local_forms",
    "localise",
    "merged",
    "named",
    "own_choices",
    "register_split",
    "split_choices",
    "split_rule",
    "tensors",
    "unregister_split",
]
