"""What is changed in the captured graph before it runs: ops whose result depends on how the batch is divided.

    dropout, attention with dropout   -> masks keyed by seed, step, op and row (`dropout`)
    other random numbers              -> keyed likewise, or of a generator seeded likewise (`draws`)
    means over labels that count      -> local sum over global count (`losses`)
    batch norm                        -> reads the PassContext: training or evaluation, first run or recompute
    other ops told whether they train -> told by the PassContext (`trained_ops`)
    paths that drop                   -> pass on what they would drop in evaluation, where nothing is drawn
    x.masked_scatter(mask, numbers)   -> held to numbers of each row's own, where rows are a piece (`filled_in_turn`)
    x[places] = 0                     -> the number in the type that x has here, under autocast too
    writes to buffers                 -> the value that the buffer is to have at the end of the step

`rewrites(graph, pieces)` gives, by node, the function to call instead, its arguments (fx nodes and constants), to which
the PassContext is added as keyword `mode` when a block is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import fx
from torch.fx.node import Argument

from placer.errors import UsageError
from placer.rules.calls import MARKED_ROWS
from placer.rules.rows.piece_values import row_dims
from placer.runtime.stages import losses
from placer.runtime.stages.draws import draw, draw_in_training, joined, plainly, seeded
from placer.runtime.stages.dropout import attention, dropout
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.piece_nodes import PieceNodes
from placer.runtime.stages.trained_ops import instance_norm, opaque_part, training_flag
from placer.tracer.export.cleaning import arguments, is_keyed
from placer.tracer.export.evaluation import IDLE, PASSES_ON
from placer.tracer.export.opaque import part_draws
from placer.tracer.functional.out_of_place import out_of_place, short

aten = torch.ops.aten

Shapes = Mapping[fx.Node, tuple[int, ...]]

_NOT_OF_ROW = (
    "masked_scatter fills more or fewer places of a row than that row has numbers (image tokens, say, and features of "
    "its image), so that others come to stand there; give each row as many, or plan with --pin data=1 --pin "
    "microbatches=1, which leaves the batch whole"
)
# Numbers of draws begin behind those of dropouts, of which no model has so many: no two ops have the same bits.
FIRST_DRAW = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """`function(*arguments, mode=...)` in place of a node."""

    function: Callable[..., object]
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What the mean of a loss op divides by: labels (not `ignore_index`) of `target`, by `weight` where given."""

    target: fx.Node
    ignore_index: int
    weight: fx.Node | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A keyed random op other than dropout: its name, and whether dim 0 of what it draws holds batch rows."""

    name: str
    batched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrites:
    """All changes of a graph. `dropped` says for each dropout op, in graph order, which dim holds batch rows, if any.

    drawn: other random ops, keyed. unkeyed: those that torch's own generator draws.
    """

    by_node: dict[fx.Node, Rewrite]
    counts: tuple[Count, ...]
    dropped: tuple[int | None, ...]
    drawn: tuple[Drawn, ...]
    unkeyed: tuple[str, ...]

    @property
    def random(self) -> bool:
        """Whether a step draws any random number."""
        return bool(self.dropped or self.drawn or self.unkeyed)


def rewrites(graph: fx.Graph, pieces: PieceNodes, shapes: Shapes) -> Rewrites:
    """The changes to `graph`. `pieces`: what rows do at its nodes; `shapes`: at MARKED_ROWS rows."""
    by_node: dict[fx.Node, Rewrite] = {}
    dropped: list[int | None] = []
    drawn: list[Drawn] = []
    unkeyed: list[str] = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if _drops(node):
            dropped.append(_dropped_rows(node, shapes))
            by_node[node] = _keyed(node, len(dropped) - 1, dropped[-1])
        elif node.target is aten.batch_norm.default:
            by_node[node] = Rewrite(function=batch_norm, arguments=tuple(arguments(node).values())[:8])
        elif node.target is aten.instance_norm.default:
            by_node[node] = Rewrite(function=instance_norm, arguments=tuple(arguments(node).values())[:8])
        elif node.target is torch.ops.placer.opaque.default:
            number, drawing = len(unkeyed), _drawing_part(node)
            told = (number if drawing else None, len(by_node))
            by_node[node] = Rewrite(function=opaque_part, arguments=(*node.args, *told))
            unkeyed += drawing
        elif writes_buffer(node):
            by_node.update(_kept(node))
        elif pieces.fills_in_turn(node):
            by_node[node] = Rewrite(function=filled_in_turn, arguments=tuple(arguments(node).values()))
        elif PASSES_ON in node.meta:
            by_node[node] = _joined(node)
        elif _puts_number(node):
            by_node[node] = Rewrite(
                function=put_number, arguments=(cast("Argument", node.target), *arguments(node).values())
            )
        elif _is_random(node):
            name = f"{node.target} ({node.name})"
            if is_keyed(node):
                by_node[node] = _drawn(node, len(drawn), has_rows(node, shapes))
                drawn.append(Drawn(name=name, batched=has_rows(node, shapes)))
            else:
                by_node[node] = _seeded(node, len(unkeyed))
                unkeyed.append(name)
    counts = _counted_losses(pieces, by_node)
    return Rewrites(by_node=by_node, counts=counts, dropped=tuple(dropped), drawn=tuple(drawn), unkeyed=tuple(unkeyed))


def has_rows(value: Argument, shapes: Shapes) -> bool:
    """Whether dim 0 of a node's tensor is a whole number of entries per row."""
    shape = shapes[value] if isinstance(value, fx.Node) else ()
    return bool(shape) and shape[0] % MARKED_ROWS == 0


def batch_norm(
    values: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    variance: torch.Tensor | None,
    training: bool,
    momentum: float,
    epsilon: float,
    *,
    mode: PassContext,
    normalised: Callable[..., torch.Tensor] = torch.nn.functional.batch_norm,
) -> torch.Tensor:
    """Batch norm over the rows at hand; running statistics are written once per pass and used in evaluation.

    normalised: what is called in training instead of torch's.
    """
    if not training or (not mode.training and mean is not None):
        return torch.nn.functional.batch_norm(values, mean, variance, weight, bias, False, momentum, epsilon)
    if not mode.updating and mean is not None and variance is not None:
        # Copies, not None: recompute must keep as many tensors for backward as the first pass did.
        mean, variance = mean.clone(), variance.clone()
    return normalised(values, mean, variance, weight, bias, True, momentum, epsilon)


def put_number(
    op: torch._ops.OpOverload, values: torch.Tensor, places: list[torch.Tensor | None], number: torch.Tensor,
    accumulate: bool, *, mode: PassContext,
) -> torch.Tensor:  # fmt: skip
    """`values[places] = number`; the capture has made the number in the type that `values` had there."""
    return op(values, places, number.to(values.dtype), accumulate)  # type: ignore[no-any-return]  # index_put's


def filled_in_turn(
    values: torch.Tensor, mask: torch.Tensor, numbers: torch.Tensor, *, mode: PassContext
) -> torch.Tensor:
    """`values.masked_scatter(mask, numbers)`: a piece of the batch knows of no numbers but those of its own rows."""
    if 0 < mode.rows != mode.global_rows:
        places = mask.expand_as(values).reshape(mode.rows, -1).sum(1)
        torch._assert_async((places == numbers.numel() // mode.rows).all(), _NOT_OF_ROW)
    return values.masked_scatter(mask, numbers)


def next_value(
    op: torch._ops.OpOverload | None, buffer: torch.Tensor, *args: object, mode: PassContext
) -> torch.Tensor:
    """What a buffer is to be at the end of the step, where the model writes in place what `op` gives; without an op
    what it copies there. `args`: what `op` takes beside, in the order of its schema."""
    if op is None:
        (value,) = args
        return (value if isinstance(value, torch.Tensor) else torch.full_like(buffer, value)).expand_as(buffer)  # type: ignore[arg-type]
    return plainly(op, (buffer, *args))  # type: ignore[return-value]  # of a buffer comes a tensor


def as_found(buffer: torch.Tensor, value: torch.Tensor, *, mode: PassContext) -> torch.Tensor:
    """A buffer that the model writes in training only: its new `value` there, itself in evaluation."""
    return value if mode.training else buffer


def _puts_number(node: fx.Node) -> bool:
    if node.target not in (aten.index_put.default, aten.index_put_.default):
        return False
    number = node.args[2]
    return isinstance(number, fx.Node) and number.target is aten.scalar_tensor.default


def _drops(node: fx.Node) -> bool:
    if node.target in (aten.dropout.default, aten.dropout_.default):
        return bool(node.args[2]) and bool(node.args[1] != 0.0)
    return node.target is aten.scaled_dot_product_attention.default and bool(arguments(node)["dropout_p"] != 0.0)


def _dropped_rows(node: fx.Node, shapes: Shapes) -> int | None:
    """The dim of what is dropped that holds batch rows: of attention dim 0 of scores, as of queries, keys, a mask."""
    if node.target is not aten.scaled_dot_product_attention.default:
        return next(iter(row_dims(shapes[cast(fx.Node, node.args[0])])), None)
    given = arguments(node)
    named = [(given["query"], 1), (given["attn_mask"], 1), (given["key"], 2)]
    # Sizes of the scores but for their last dim: a key has none of queries.
    sizes = [(*shapes[one][:-ends], *(1,) * (ends - 1)) for one, ends in named if isinstance(one, fx.Node)]
    most = max(map(len, sizes))
    return 0 if any(len(one) == most and one[0] % MARKED_ROWS == 0 for one in sizes) else None


def _keyed(node: fx.Node, op: int, rows: int | None) -> Rewrite:
    if node.target is aten.scaled_dot_product_attention.default:
        return Rewrite(function=attention, arguments=(*arguments(node).values(), op, rows is not None))
    return Rewrite(function=dropout, arguments=(node.args[0], node.args[1], op, rows))


def _drawn(node: fx.Node, number: int, batched: bool) -> Rewrite:
    op = cast("Argument", node.target)
    function = draw_in_training if IDLE in node.meta else draw
    return Rewrite(function=function, arguments=(op, FIRST_DRAW + number, batched, *arguments(node).values()))


def _joined(node: fx.Node) -> Rewrite:
    given = (cast("Argument", node.target), cast(int, node.meta[PASSES_ON]), *arguments(node).values())
    return Rewrite(function=joined, arguments=given)


def _seeded(node: fx.Node, number: int) -> Rewrite:
    given = arguments(node)
    flag = training_flag(node, given)
    return Rewrite(function=seeded, arguments=(cast("Argument", node.target), number, flag, *given.values()))


def _drawing_part(node: fx.Node) -> tuple[str, ...]:
    """An opaque part in words, where it draws random numbers; else nothing."""
    name = str(node.args[2])
    return (f"{name.partition('#')[0]} (not looked into)",) if part_draws(name) else ()


def _is_random(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    found = arguments(node)
    if "num_layers" in found:  # recurrent: dropout is between layers
        return bool(found["dropout"] and found["train"] and found["num_layers"] != 1)
    return node.target not in (aten.dropout.default, aten.dropout_.default, aten.scaled_dot_product_attention.default)


def mutates(node: fx.Node) -> bool:
    """Whether the op writes its first argument."""
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        and bool(node.args)
        and isinstance(node.args[0], fx.Node)
    )


def first_argument(node: fx.Node) -> fx.Node:
    """The node whose value `node` takes first; what an in-place op writes to."""
    base = node.args[0]
    assert isinstance(base, fx.Node)
    return base


def writes_buffer(node: fx.Node) -> bool:
    """Whether the op is the commit of a buffer, as capture leaves one for each that forward writes."""
    return mutates(node) and isinstance(node.args[0], fx.Node) and node.args[0].op == "get_attr"


def _kept(commit: fx.Node) -> dict[fx.Node, Rewrite]:
    """A buffer's commit as the value that it is to have; in evaluation it is read as it was found."""
    buffer, *given = arguments(commit).values()
    found: dict[fx.Node, Rewrite] = {}
    name = short(commit)
    if name in ("copy_", "fill_", "zero_"):
        value = 0 if name == "zero_" else given[0]
        found[commit] = Rewrite(function=next_value, arguments=(None, buffer, value))
        if isinstance(value, fx.Node) and value.target is aten.alias_copy.default:
            found[value] = Rewrite(function=as_found, arguments=(buffer, value.args[0]))
        return found
    form = cast("Argument", out_of_place(commit))  # a graph's argument may be an operator
    found[commit] = Rewrite(function=next_value, arguments=(form, buffer, *given))
    return found


_LABELLED = frozenset({
    aten.cross_entropy_loss.default, aten.nll_loss.default, aten.nll_loss_nd.default, aten.nll_loss2d.default
})  # fmt: skip


def _counted_losses(pieces: PieceNodes, by_node: dict[fx.Node, Rewrite]) -> tuple[Count, ...]:
    """The means over labels that count, divided by the count of the whole batch."""
    counts: list[Count] = []
    for node in pieces.ops:
        if pieces.averages(node) == "labels" and node.target in _LABELLED:
            named = arguments(node)
            by_node[node] = _labelled(node.target is aten.cross_entropy_loss.default, named, len(counts))
            counts.append(_count(named))
    return tuple(counts)


def _labelled(is_cross_entropy: bool, named: dict[str, Argument], index: int) -> Rewrite:
    first = (named["self"], named["target"], named["weight"], named["ignore_index"])
    if is_cross_entropy:
        return Rewrite(function=losses.cross_entropy, arguments=(*first, named["label_smoothing"], index))
    return Rewrite(function=losses.nll, arguments=(*first, index))


def _count(named: dict[str, Argument]) -> Count:
    target, weight, ignored = named["target"], named["weight"], named["ignore_index"]
    if not isinstance(target, fx.Node) or not isinstance(ignored, int):
        raise UsageError("the loss has labels that are not a tensor of the batch; give labels as a model input")
    return Count(target=target, ignore_index=ignored, weight=weight if isinstance(weight, fx.Node) else None)
