"""The nodes of a traced block beside the ops that the plan knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
from torch import fx

from placer.errors import StalePlanError, UsageError
from placer.graph import Block, BlockClass
from placer.runtime.stages.rewrite import mutates
from placer.tracer import STANDS_FOR
from placer.tracer.functional.out_of_place import out_of_place as functional_form

aten = torch.ops.aten


def require_same(block: Block, block_class: BlockClass, nodes: Sequence[fx.Node]) -> None:
    """The traced block has the ops that the plan knows, one by one. Raises StalePlanError otherwise."""
    for node, op in zip_longest(nodes, block_class.ops):
        found = "nothing" if node is None else _target(node)
        planned = "nothing" if op is None else op.target
        if found != planned:
            raise StalePlanError(
                f"block {block.name} does {found} where the plan has {planned}: the model's code or the versions of "
                "torch and transformers changed; plan again"
            )


def out_of_place(node: fx.Node) -> Callable[..., object]:
    """What to call for an op on converted values, which may be views of others and lie otherwise in memory.

    Raises UsageError where a value is written that is read later.
    """
    target = node.target
    assert callable(target)
    if target in (aten.view.default, aten._unsafe_view.default):
        reshape: Callable[..., object] = aten.reshape.default
        return reshape
    if not mutates(node):
        return target
    base = node.args[0]
    assert isinstance(base, fx.Node) and isinstance(target, torch._ops.OpOverload)
    if base.op == "get_attr" or any(node < user for user in base.users if user is not node):
        raise UsageError("it writes a value that is read later; use the out-of-place form in the model")
    found = functional_form(node)
    if found is None:
        raise UsageError("it writes in place and has no other form; use one in the model")
    return found


def _target(node: fx.Node) -> str:
    """As an op of a Graph names it."""
    operator_ = STANDS_FOR.get(node.target, node.target)
    if isinstance(operator_, torch._ops.OpOverload):
        return f"{operator_._schema.name.replace('::', '.')}.{operator_._overloadname}"
    return str(operator_)
