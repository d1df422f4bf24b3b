"""`h.unsqueeze_(1)`: calls that write no number and give the tensor that they are called on other dims.

As writes they would be put back into what the tensor is a view of, whose dims stay: that loses them. So they become the
views of which they are the in-place form, before anything is played or rewritten.
"""

from __future__ import annotations

import torch
from torch import fx

from placer.errors import UncapturableError
from placer.tracer.export.cleaning import Plain, target_name
from placer.tracer.functional.families import dependent

aten = torch.ops.aten

_VIEWS: dict[object, torch._ops.OpOverload] = {
    aten.squeeze_.default: aten.squeeze.default, aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims, aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.transpose_.default: aten.transpose.int, aten.t_.default: aten.t.default,
    aten.swapaxes_.default: aten.swapaxes.default, aten.swapdims_.default: aten.swapdims.default,
}  # fmt: skip


def turn_out_of_place(plain: Plain) -> None:
    """Make views of the calls that change a tensor's dims in place.

    Raises UncapturableError for one of a parameter or buffer, which has other dims in the next step, and for one within
    `no_grad` of a value that has a gradient, which no view of it without one stands for.
    """
    turns = [node for node in plain.graph.nodes if node.target in _VIEWS]
    trained = dependent(plain) if turns else set()
    for node in turns:
        tensor = _tensor(node, turns)
        detached = target_name(tensor) == "aten::detach" and tensor.args[0] in trained
        if detached and isinstance(tensor.args[0], fx.Node) and tensor.args[0].op == "get_attr":
            tensor = tensor.args[0]
        if tensor.op == "get_attr":
            raise _refused(node, f"{tensor.target}, which the next step would find so")
        if detached:
            raise _refused(node, "a value without its gradient that is read with it")
    for node in turns:
        node.target = _VIEWS[node.target]


def _tensor(node: fx.Node, turns: list[fx.Node]) -> fx.Node:
    """What made the tensor that `node`, a call in place, is called on."""
    while node in turns or target_name(node).endswith("_"):
        assert isinstance(node.args[0], fx.Node)
        node = node.args[0]
    return node


def _refused(node: fx.Node, what: str) -> UncapturableError:
    place = node.meta.get("source") or "a line that is not known"
    return UncapturableError(
        f"{target_name(node)} at {place} changes the dims of {what}; use the form without _, which makes a view"
    )
