"""How many tokens each expert got in a run: counted in the forwards of training, layer by layer.

A product of experts takes rows sorted by expert, with the row at which each expert's end. A `Tally` beside it adds up
their differences on the device; no step waits for it. Rows behind the last end belong to no expert: a model with a
capacity dropped them. Runs again in backward, evaluations and replicas without rows do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import fx, nn

from placer.errors import UsageError
from placer.graph import BlockClass
from placer.io.files import write_text
from placer.plans.plan import Plan
from placer.rules.expert_loads import PRODUCTS, expert_counts, experts_of
from placer.runtime.stages.block_code import BlockCode
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.stages.stage import StageModule


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayer:
    """The tokens each expert of a layer got in all steps of a run, and those that none took."""

    name: str
    tokens: tuple[int, ...]
    dropped: int = 0

    @property
    def mean(self) -> float:
        """Tokens of an expert, if all had equally many."""
        return sum(self.tokens) / len(self.tokens)


class Tally(nn.Module):
    """Counts beside one product of experts: rows, and rows of each expert."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.counts: torch.Tensor | None = None

    def forward(self, mode: PassContext, x: torch.Tensor, ends: torch.Tensor) -> None:
        """Add a forward's rows `x`, sorted by expert, with the end of each expert's."""
        if not mode.updating:
            return
        own = torch.diff(ends.detach(), prepend=ends.new_zeros(1)).long()
        self.rows += x.shape[0]
        self.counts = own if self.counts is None else self.counts + own


def tallies(stages: Iterable[StageModule]) -> dict[str, Tally]:
    """A tally beside the first product of every layer of experts of `stages`, by the layer's name."""
    found: dict[str, Tally] = {}
    for stage in stages:
        for code in stage.code.blocks:
            for node in tuple(code.module.graph.nodes):
                name = _layer(node, code)
                if name and name not in found:
                    found[name] = _beside(node, code, f"tally{len(found)}")
    return found


def expert_layers(plan: Plan, steps: int, own: dict[str, Tally]) -> tuple[ExpertLayer, ...]:
    """The layers of the whole model, in its order, after `steps` steps; all ranks call it, and get the same.

    Where all devices of a replica see all of its rows they count them as often: rows say how often.
    """
    mine = {name: (tally.rows, [] if tally.counts is None else tally.counts.tolist()) for name, tally in own.items()}
    every: list[dict[str, tuple[int, list[int]]]] = [{}] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    found = []
    for name, rows in _expected(plan).items():
        of_ranks = [of[name] for of in every if name in of and of[name][1]]
        seen = sum(counted for counted, _ in of_ranks)
        if seen and rows * steps:
            times = max(1, round(seen / (rows * steps)))
            tokens = tuple(sum(each) // times for each in zip(*(counts for _, counts in of_ranks), strict=True))
            found.append(ExpertLayer(name=name, tokens=tokens, dropped=seen // times - sum(tokens)))
    return tuple(found)


def save_loads(layers: Sequence[ExpertLayer], path: str) -> None:
    """Write the tokens of each expert over all layers, a number a line: a file for `--expert-loads`."""
    write_text(path, "".join(f"{load}\n" for load in summed_loads(layers)))


def summed_loads(layers: Sequence[ExpertLayer]) -> tuple[int, ...]:
    """The tokens of each expert over all layers, which have equally many experts (`require_alike`)."""
    return tuple(sum(each) for each in zip(*(layer.tokens for layer in layers), strict=True))


def require_alike(plan: Plan) -> None:
    """Raise UsageError for a model whose layers do not have one number of experts."""
    counts = expert_counts(plan.graph)
    if len(counts) != 1:
        found = f"layers of {' and of '.join(map(str, counts))} experts" if counts else "no experts"
        raise UsageError(
            f"--save-expert-loads was asked for, and {plan.graph.name} has {found}; leave it out (loads are of the "
            "experts of a layer, the same in all layers)"
        )


def _expected(plan: Plan) -> dict[str, int]:
    """Rows of a step's first product of each layer of experts, in the model's order."""
    found: dict[str, int] = {}
    for index, block in enumerate(plan.graph.blocks):
        kind = plan.graph.block_class(index)
        for op in kind.ops:
            weight = _source(kind, op.inputs[1]) if experts_of(kind, op) else ""
            if weight.startswith("p"):
                name = _owner(block.parameters[int(weight[1:])])
                rows = kind.tensor(op.inputs[0]).shape[0]
                found.setdefault(name, rows if isinstance(rows, int) else rows.at(plan.rows))
    return found


def _source(kind: BlockClass, value: str) -> str:
    """The parameter or input from which a value is made by looking at it otherwise (transposed, cast)."""
    while value.startswith("o"):
        value = next(iter(kind.ops[int(value[1:].split(".")[0])].inputs), "")
    return value


def _layer(node: fx.Node, code: BlockCode) -> str:
    """The layer whose experts `node` multiplies with; "" where it is no product of experts."""
    if node.op != "call_function" or _product(node) is None:
        return ""
    given = [other.name for other in code.module.graph.nodes if other.op == "placeholder"]
    names = dict(zip(given[1:], code.inputs, strict=True))  # the first is the mode
    weight = _arguments(node)[1]
    while isinstance(weight, fx.Node) and weight.op != "placeholder":
        weight = next(iter(weight.all_input_nodes), None)
    name = names.get(weight.name, "") if isinstance(weight, fx.Node) else ""
    return _owner(name.removeprefix("p:")) if name.startswith("p:") else ""


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _product(node: fx.Node) -> torch._ops.OpOverload | None:
    """The product of experts that `node` calls, itself or in the form of a rank."""
    for called in (node.target, *node.args[:1]):
        if isinstance(called, torch._ops.OpOverload) and called._schema.name.split("::")[-1] in PRODUCTS:
            return called
    return None


def _arguments(node: fx.Node) -> tuple[object, ...]:
    """Its rows, weights and ends, however it is written."""
    args, kwargs = node.args, node.kwargs
    if not isinstance(node.target, torch._ops.OpOverload):
        args, kwargs = node.args[1], node.args[2]  # type: ignore[assignment]  # see `spmd.graph_ops.local_op`
    ends = args[2] if len(args) > 2 else next(kwargs[name] for name in ("offs", "offsets") if name in kwargs)
    return (args[0], args[1], ends)


def _beside(node: fx.Node, code: BlockCode, name: str) -> Tally:
    tally, graph = Tally(), code.module.graph
    mode = next(iter(graph.nodes))
    x, _, ends = _arguments(node)
    code.module.add_submodule(name, tally)
    with graph.inserting_before(node):
        graph.call_module(name, (mode, x, ends))  # type: ignore[arg-type]
    code.module.recompile()
    return tally
