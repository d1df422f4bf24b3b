"""What a step takes sums of over the whole batch before it runs: what the batch and keyed random numbers alone say,
without trained weights.

counts     per mean over labels: how many (or how much weight) of the whole batch count
totals     per value that ops take of the whole batch: its sum over the pieces
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.utils._pytree import tree_map_only

from placer.runtime.stages.block_code import CutModel, attribute, put
from placer.runtime.stages.draws import draw, draw_in_training
from placer.runtime.stages.losses import counted
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.rewrite import Count
from placer.runtime.stages.shapes import TensorMeta

Batch = dict[str, torch.Tensor]
Read = Callable[[str], torch.Tensor]
#: Where batches are there whole, wherever a caller has torch make its tensors (`torch.set_default_device`).
_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSums:
    """The sums of a batch."""

    counts: tuple[float, ...] = ()
    totals: tuple[torch.Tensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchValues:
    """The values that sums are taken of, as a function of rows of a batch: `code` of the pass over them, by whose share
    of the rows means count and whose keys random numbers have, and of the inputs `names`.

    It gives labels and class weights (None where there are none) of each of `counts`, then `totals` more.
    """

    code: fx.GraphModule
    names: tuple[str, ...]
    counts: tuple[Count, ...]
    totals: tuple[TensorMeta, ...]

    @staticmethod
    def of(cut: CutModel, read: Read) -> BatchValues:
        """Of a model as it was cut; `read` gives its buffers by name."""
        counts, totals = cut.rewrites.counts, cut.pieces.totals
        wanted = [node for count in counts for node in (count.target, count.weight)] + list(totals)
        code, names = _function(cut, read, wanted)
        shapes = tuple(cut.shape_at(node, 1) for node in totals)
        return BatchValues(code=code, names=names, counts=counts, totals=shapes)

    @property
    def none(self) -> bool:
        """Whether nothing is taken of the batch."""
        return not self.counts and not self.totals

    @torch.no_grad()
    def sums(self, pieces: Iterable[tuple[PassContext, Batch]]) -> BatchSums:
        """The sums over the passes of pieces, which are the whole batch."""
        counts = [0.0] * len(self.counts)
        totals = [torch.zeros((), dtype=_summed_in(one.dtype), device=_HOST) for one in self.totals]
        for mode, piece in pieces:
            values = self.code(mode, mode.rows / mode.global_rows, *(piece[name] for name in self.names))
            for at, count in enumerate(self.counts):
                counts[at] += counted(values[2 * at], count.ignore_index, values[2 * at + 1])
            totals = [total + value for total, value in zip(totals, values[2 * len(counts) :], strict=True)]
        rounded = tuple(total.to(one.dtype) for total, one in zip(totals, self.totals, strict=True))
        return BatchSums(counts=tuple(counts), totals=rounded)

    @property
    def stand_ins(self) -> BatchSums:
        """Sums of a batch of which everything counts once, for a step that only looks at shapes."""
        return BatchSums(
            counts=(1.0,) * len(self.counts),
            totals=tuple(torch.ones(one.shape, dtype=one.dtype, device=_HOST) for one in self.totals),
        )


def _summed_in(dtype: torch.dtype) -> torch.dtype:
    """The type of a sum of values of a type, which is rounded once."""
    return torch.float64 if dtype.is_floating_point else dtype


def _function(cut: CutModel, read: Read, wanted: list[fx.Node | None]) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """The nodes `wanted` as a function of the model inputs that they are made from."""
    needed = {node for node in wanted if node is not None}
    order = list(cut.module.graph.nodes)
    for node in reversed(order):
        if node in needed:
            needed.update(node.all_input_nodes)
    root, graph = nn.Module(), fx.Graph()
    mode, share = graph.placeholder("mode"), graph.placeholder("share_of_rows")
    made: dict[fx.Node, fx.Node] = {}
    for node in order:
        if node in needed:
            made[node] = _drawn(cut, node, graph, made, mode) or _on_host(graph.node_copy(node, made.__getitem__))
        if node in needed and cut.pieces.averages(node) == "rows":
            made[node] = graph.call_function(operator.mul, (made[node], share))
        if node in needed and node.op == "get_attr":
            put(root, str(node.target), _state(cut, read, str(node.target)))
    graph.output(tuple(None if node is None else made[node] for node in wanted))
    names = tuple(str(node.target) for node in order if node in needed and node.op == "placeholder")
    return fx.GraphModule(root, graph), names


def _on_host(node: fx.Node) -> fx.Node:
    """A call that makes or moves nothing on another device: the batch is there whole on the host alone."""
    node.args, node.kwargs = tree_map_only(torch.device, lambda _: _HOST, (node.args, node.kwargs))
    return node


def _drawn(
    cut: CutModel, node: fx.Node, graph: fx.Graph, made: dict[fx.Node, fx.Node], mode: fx.Node
) -> fx.Node | None:
    """The keyed random numbers of the step that `node` draws; None where it draws none."""
    change = cut.rewrites.by_node.get(node)
    if change is None or change.function not in (draw, draw_in_training):
        return None
    arguments = fx.map_arg(change.arguments, made.__getitem__)
    return graph.call_function(draw, arguments, {"mode": mode})


def _state(cut: CutModel, read: Read, name: str) -> torch.Tensor:
    """A buffer of the model, or a constant of its graph; that of the graph where the model has no memory."""
    own = cut.state(name)
    return (attribute(cut.module, name) if own is None or own.is_meta else read(name)).detach().cpu()
