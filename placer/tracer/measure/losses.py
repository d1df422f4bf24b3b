"""How the captured loss reduces over the batch, and what bounds integer inputs: both read off the graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from placer.graph import Loss
from placer.tracer.export.cleaning import short_name, target_name
from placer.tracer.measure.meta_run import Played

# What a loss may pass through without changing how it reduces.
_TRANSPARENT = (
    "to", "clone", "contiguous", "view", "reshape", "squeeze", "alias", "detach", "mul", "div", "neg", "_to_copy",
)  # fmt: skip
# Operators whose argument at this position is aten's reduction code (0 none, 1 mean, 2 sum).
_REDUCES_AT = {
    2: "mse_loss l1_loss smooth_l1_loss huber_loss kl_div soft_margin_loss",
    3: "cross_entropy_loss nll_loss nll_loss_nd nll_loss2d binary_cross_entropy",
    4: "binary_cross_entropy_with_logits",
}
_REDUCTION_AT = {name: at for at, names in _REDUCES_AT.items() for name in names.split()}
_WITH_CLASSES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")
_CODES = {0: "none", 1: "mean", 2: "sum"}
# Operators that hand on the integers they are given (or put -100 among them).
_INTEGERS_PASS = (
    "view", "reshape", "slice", "select", "to", "_to_copy", "clone", "contiguous", "pad", "constant_pad_nd",
    "expand", "flatten", "unsqueeze", "squeeze", "transpose", "permute", "masked_fill", "where",
    "slice_scatter", "select_scatter", "type_as", "expand_as", "cat", "roll", "alias", "detach", "new_zeros",
    "unflatten",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLoss:
    """A loss as nodes: the node of its value, the reduction, the node of its targets."""

    loss: Loss
    node: fx.Node | None = None


def found_loss(graph: fx.Graph, facts: dict[fx.Node, Played]) -> FoundLoss:
    """The loss of the graph: its only output where that is a number that needs a gradient."""
    results = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    assert isinstance(results, (tuple, list))
    only = results[0] if len(results) == 1 else None
    if not isinstance(only, fx.Node) or facts[only].results[0].numel() != 1:
        return FoundLoss(loss=Loss(reduction="none", why="the model gives no loss"))
    node = _origin(only)
    name = short_name(node)
    if name in _REDUCTION_AT:
        return FoundLoss(loss=_criterion(node, name), node=only)
    if name in ("mean", "sum") and target_name(node) == f"aten::{name}" and len(node.args) == 1:
        return FoundLoss(loss=Loss(reduction="mean" if name == "mean" else "sum"), node=only)
    why = (
        f"the loss ends in {target_name(node)} at {node.meta.get('source', '')}, which is not known to split over rows"
    )
    return FoundLoss(loss=Loss(reduction="other", why=why), node=only)


def integer_bound(graph: fx.Graph, placeholder: fx.Node, facts: dict[fx.Node, Played]) -> int | None:
    """The smallest table or class count an integer input indexes; None where nothing bounds it."""
    bounds: list[int] = []
    pending, seen = [placeholder], {placeholder}
    while pending:
        node = pending.pop()
        for user in node.users:
            name = short_name(user)
            if name == "embedding" and user.args[1] is node:
                bounds.append(int(_shape(user.args[0], facts)[0]))
            elif name in _WITH_CLASSES and user.args[1] is node:
                bounds.append(int(_shape(user.args[0], facts)[1]))
            elif name in _INTEGERS_PASS and user not in seen:
                seen.add(user)
                pending.append(user)
    return min(bounds) if bounds else None


def _criterion(node: fx.Node, name: str) -> Loss:
    at = _REDUCTION_AT[name]
    code = node.args[at] if len(node.args) > at else node.kwargs.get("reduction", 1)
    reduction = _CODES.get(code) if isinstance(code, int) else None
    weighted = name in _WITH_CLASSES and len(node.args) > 2 and node.args[2] is not None
    if reduction not in ("mean", "sum") or (weighted and reduction == "mean"):
        why = f"{name} at {node.meta.get('source', '')} weights its classes or does not reduce"
        return Loss(reduction="other", why=why)
    labels = _input_of(node.args[1])
    ignore = None
    if name in _WITH_CLASSES:
        found = node.args[at + 1] if len(node.args) > at + 1 else node.kwargs.get("ignore_index", -100)
        ignore = found if isinstance(found, int) else None
    return Loss(reduction="mean" if reduction == "mean" else "sum", labels=labels, ignore_index=ignore)


def _origin(node: fx.Node) -> fx.Node:
    while short_name(node) in _TRANSPARENT:
        tensors = [argument for argument in node.all_input_nodes if not argument.meta.get("size")]
        if len(tensors) != 1 or tensors[0].op != "call_function":
            return node
        node = tensors[0]
    return node


def _input_of(target: object) -> str:
    """The input the targets are made from; `labels` where several are."""
    pending, seen, found = [target], set(), []
    while pending:
        node = pending.pop()
        if not isinstance(node, fx.Node) or node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            found.append(str(node.target))
        elif short_name(node) != "sym_size":
            pending.extend(node.all_input_nodes)
    return "labels" if "labels" in found else next(iter(found), "")


def _shape(node: object, facts: dict[fx.Node, Played]) -> torch.Size:
    assert isinstance(node, fx.Node)
    return facts[node].results[0].shape
