"""The loss of a captured graph with its labels, read off the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from placer.graph import Loss
from placer.tracer.export.cleaning import short_name
from placer.tracer.measure.meta_run import Played

WITH_CLASSES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLoss:
    """A loss and the node of its value."""

    loss: Loss
    node: fx.Node | None = None


def found_loss(graph: fx.Graph, facts: dict[fx.Node, Played]) -> FoundLoss:
    """The loss of the graph: its only output where that is a number; with the labels of a loss over classes in it."""
    results = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    assert isinstance(results, (tuple, list))
    only = results[0] if len(results) == 1 else None
    if not isinstance(only, fx.Node) or facts[only].results[0].numel() != 1:
        return FoundLoss(loss=Loss(reduction="none", why=_no_loss(results, facts)))
    labelled = next((node for node in reversed(graph.nodes) if short_name(node) in WITH_CLASSES), None)
    if labelled is None:
        return FoundLoss(loss=Loss(reduction="sum"), node=only)
    labels, ignored = _input_of(labelled.args[1]), ignored_label(labelled)
    return FoundLoss(loss=Loss(reduction="sum", labels=labels, ignore_index=ignored if labels else None), node=only)


def _no_loss(results: Sequence[object], facts: dict[fx.Node, Played]) -> str:
    """Why there is none: several results, one of which may be it."""
    numbers = [at for at, one in enumerate(results, 1) if isinstance(one, fx.Node) and not _shape(one, facts)]
    if len(results) == 1 or len(numbers) != 1:
        return ""
    return (
        f"it gives {len(results)} tensors, of which number {numbers[0]} is one number: where that is the loss, say so "
        f"by a loss that takes it, as def loss(output, batch): return output[{numbers[0] - 1}]"
    )


def ignored_label(node: fx.Node) -> int | None:
    """The label that does not count (`ignore_index`)."""
    found = node.args[4] if len(node.args) > 4 else node.kwargs.get("ignore_index", -100)
    return found if isinstance(found, int) else None


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
