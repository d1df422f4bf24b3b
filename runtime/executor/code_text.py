"""rank_code(plan, rank): what a rank's blocks run, as text: local ops and named collectives with their sizes.

It needs the model's structure only: the model is built without weights, and the axis has no process group.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import fx

from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.program.lowering import lower
from placer.runtime.executor.rank_builder import axis_of
from placer.runtime.spmd import LocalBlocks
from placer.runtime.spmd.conversions import Way
from placer.runtime.stages.block_code import BlockCode, CutModel
from placer.runtime.stages.captured_model import captured
from placer.runtime.weights.meta_model import prepared_model

_WAY = re.compile(r"\bWay(\((?:[^()]|\([^()]*\))*\))")
_FORGOTTEN = re.compile(r";  [\w = ]+ = None$", re.MULTILINE)


def rank_code(plan: Plan, rank: int) -> str:
    """The code of the blocks of `rank`; of blocks that run the same the first. Raises UsageError as `load` does."""
    programs = lower(plan)
    if not 0 <= rank < len(programs):
        raise UsageError(f"the plan has ranks 0 to {len(programs) - 1}, not {rank}")
    source = prepared_model(plan, None, torch.device("meta"))
    cut = captured(plan, source).cut(plan, source)
    if plan.layouts:
        cut = replace(cut, lowering=LocalBlocks.of(plan, axis_of(plan, rank)))
    return "\n".join(_blocks(plan, cut, programs[rank].stages))


def _blocks(plan: Plan, cut: CutModel, stages: tuple[int, ...]) -> Iterator[str]:
    first: dict[tuple[int, int], str] = {}
    for stage in stages:
        for index in range(plan.stages[stage].first, plan.stages[stage].last):
            block = plan.graph.blocks[index]
            like = first.setdefault((stage, block.kind), block.name)
            yield f"# {block.name}" if like == block.name else f"# {block.name}: as {like}"
            if like == block.name:
                yield _text(cut.block(index))


def _text(code: BlockCode) -> str:
    """A block's code in short: without where functions come from and what is forgotten when."""
    text = _FORGOTTEN.sub("", code.module.code.strip())
    for qualified, name in _ours(code.module).items():
        text = text.replace(qualified, name)
    return _WAY.sub(lambda found: _way(Way(*ast.literal_eval(found[1]))), text.replace("torch.ops.aten.", "aten."))


def _ours(module: fx.GraphModule) -> dict[str, str]:
    """How the code calls functions of this package, and their own names."""
    found = {Way: "Way"} | {node.target: node.target.__name__ for node in module.graph.nodes if callable(node.target)}
    return {
        f"{function.__module__}.{name}".replace(".", "_"): name
        for function, name in found.items()
        if str(function.__module__).startswith("placer.")
    }


def _way(way: Way) -> str:
    told = {"dim": way.dim, "to": way.to}
    more = {"size": way.size or 1, "parts": way.parts, "to_parts": way.to_parts}
    shown: dict[str, object] = {name: value for name, value in told.items() if value >= 0}
    shown |= {name: value for name, value in more.items() if value != 1}
    shown |= {name: size for name, size in (("every", way.every), ("to_every", way.to_every)) if size}
    shown |= {name: order for name, order in (("order", way.order), ("to_order", way.to_order)) if order}
    return f"Way({', '.join((repr(way.name), *(f'{name}={value}' for name, value in shown.items())))})"
