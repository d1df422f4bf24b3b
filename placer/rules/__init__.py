"""What an operator does, by rule: its matrix products and FLOPs forward and backward, and its kind.

Needs no torch: an operator is seen as a `Call` (its name, the shapes of its tensors, its other arguments). A rule is a
function `Call -> Work`. A custom operator gets one in a few lines:

    from placer.rules import Call, Work, gradients, register

    def scan(call: Call) -> Work:
        x_BSH, w_HN = call.tensor(0), call.tensor(1)
        return gradients(x_BSH, w_HN, batch=1, m=x_BSH.elements // x_BSH.shape[-1], n=w_HN.shape[1], k=w_HN.shape[0])

    register("mylib::scan", scan, kind="matmul")

What an op may do under parallelism is a split rule, `Call -> Choices`, added with `register_split`; `named` writes one.

    families/    what operators compute and how they may be cut, a file for each family (`attention`, `convolutions`)
    registry     the tables of these by name: kinds, FLOPs, splits
    patterns     how split rules are written; `layouts` are the values that they give
    splits/      what follows: the choices of a block's ops, the op that a rank runs
"""

from placer.rules.calls import Argument, Call, MatrixProduct, Rule, Value, Work, gradients
from placer.rules.coverage import unsplit
from placer.rules.graph_calls import call_of, tensor_arguments
from placer.rules.opaque import OpaqueCost
from placer.rules.patterns import named
from placer.rules.registry import kind_of, register, register_split, rule_for, unregister, unregister_split
from placer.rules.splits.block_choices import block_choices, op_choices

__all__ = [
    "Argument",
    "Call",
    "MatrixProduct",
    "OpaqueCost",
    "Rule",
    "Value",
    "Work",
    "block_choices",
    "call_of",
    "gradients",
    "kind_of",
    "named",
    "op_choices",
    "register",
    "register_split",
    "rule_for",
    "tensor_arguments",
    "unregister",
    "unregister_split",
    "unsplit",
]
