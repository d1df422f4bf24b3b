"""`placer bench evaluate`: how many neighbouring plans a search evaluates a second on one core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.api import capture
from placer.cli.options import Batch, Json, print_result
from placer.cluster.cluster import Cluster
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.report.documents import Document
from placer.report.printing import table
from placer.search.problem import Problem

if TYPE_CHECKING:
    from placer.graph import Graph
    from placer.strategies.moves.speed import Speed

# GPT-3 175B (arXiv:2005.14165, table 2.1), 1,536 of its sequences a step, on 1,024 devices.
SIZES = {"n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": 2048, "vocab_size": 51200}
BATCH = {"input_ids": (1536, 2048), "labels": (1536, 2048)}
CLUSTER = "a100-80gb-sxm4x8*128"


def evaluate(
    model: Annotated[str | None, typer.Argument(help="As for `placer plan`; default: GPT-3 of 96 layers.")] = None,
    cluster: Annotated[str, typer.Option(help="As for `placer plan`.")] = CLUSTER,
    batch: Batch = None,
    plans: Annotated[int, typer.Option(min=1, help="Neighbouring plans to evaluate.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the walk.")] = 0,
    json: Json = False,
) -> None:
    """Walk from plan to plan as a search does: plans a second of the processor, moves and repairs among them."""
    from placer.strategies.moves.speed import evaluation_speed

    machines = Cluster.load(cluster)
    graph = _captured(model, batch, machines.size)
    problem = Problem(
        graph=graph, cluster=machines, settings=RunSettings(precision="bfloat16"), rows=graph.rows, seed=seed,
        model=ModelRef(kind="module", reference=graph.name, fingerprint=""),
    )  # fmt: skip
    found = evaluation_speed(problem, plans)
    print_result(_view(found), _document(found), json)


def _captured(model: str | None, batch: str | None, devices: int) -> Graph:
    if model is not None:
        return capture(model, batch=batch, devices=devices)
    import torch
    import transformers

    with torch.device("meta"):
        made = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, use_cache=False))
    return capture(made, batch=batch or BATCH, devices=devices)


def _view(found: Speed) -> RenderableType:
    told = Text(
        f"{found.per_second:,.0f} neighbouring plans a second on one core: {found.plans} plans ({found.legal} legal) "
        f"of {found.blocks} blocks on {found.devices} devices, from one of {found.positions} positions on, "
        f"in {found.seconds:.2f} s"
    )
    view = table("move", "plans", "plans a second", left=1)
    for kind in sorted(found.kinds, key=lambda kind: -kind.plans):
        view.add_row(kind.name, str(kind.plans), f"{kind.per_second:,.0f}")
    return Group(view, told)


def _document(found: Speed) -> Document:
    return {
        "plans_per_second": found.per_second,
        "plans": found.plans,
        "legal_plans": found.legal,
        "processor_time_seconds": found.seconds,
        "blocks": found.blocks,
        "devices": found.devices,
        "positions": found.positions,
        "moves": [
            {
                "move": kind.name,
                "plans": kind.plans,
                "processor_time_seconds": kind.seconds,
                "plans_per_second": kind.per_second,
            }
            for kind in found.kinds
        ],
    }
