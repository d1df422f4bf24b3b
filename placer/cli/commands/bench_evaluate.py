"""`placer bench evaluate`: how many neighbouring plans a search evaluates a second on one core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from placer.api import capture
from placer.cli.options import Batch, Json, print_result
from placer.cluster.cluster import Cluster
from placer.io.usercode import named
from placer.plans.plan import ModelRef
from placer.plans.settings import RunSettings
from placer.search.problem import Problem

if TYPE_CHECKING:
    from placer.graph import Graph
    from placer.strategies.moves.speed import Speed

# GPT-3 175B (arXiv:2005.14165, table 2.1) in its batch of 1,536 sequences, on 1,024 devices.
SIZES = {"n_layer": 96, "n_embd": 12288, "n_head": 96, "n_positions": 2048, "vocab_size": 51200}
BATCH = "1536x2048"
CLUSTER = "a100-80gb-sxm4x8*128"


def evaluate(
    model: Annotated[str | None, typer.Argument(help="As for `placer plan`; default: GPT-3 of 96 layers.")] = None,
    cluster: Annotated[str, typer.Option(help="As for `placer plan`.")] = CLUSTER,
    batch: Batch = None,
    plans: Annotated[int, typer.Option(min=1, help="Neighbouring plans to evaluate.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the walk.")] = 0,
    json: Json = False,
) -> None:
    """Walk from plan to plan as a search does; plans a second of the processor, moves and repairs among them."""
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
        from placer.cli.commands.plan import named_shapes

        return capture(model, batch=named_shapes(batch) if batch and "=" in batch else batch, devices=devices)
    build, config, device = (
        named(f"{name}", "the default model")
        for name in ("transformers:GPT2LMHeadModel", "transformers:GPT2Config", "torch:device")
    )
    with device("meta"):  # type: ignore[operator]
        made = build(config(**SIZES, use_cache=False))  # type: ignore[operator]
    return capture(made, batch=batch or BATCH, devices=devices)


def _view(found: Speed) -> Text:
    return Text(
        f"{found.per_second:,.0f} neighbouring plans a second on one core: {found.plans} plans ({found.legal} legal) of "
        f"{found.blocks} blocks on {found.devices} devices in {found.seconds:.2f} s of its time, the best of "
        f"{found.positions} positions and {found.step_seconds:.4g} s a step"
    )


def _document(found: Speed) -> dict[str, int | float]:
    return {
        "plans_per_second": found.per_second,
        "plans": found.plans,
        "legal_plans": found.legal,
        "processor_time_seconds": found.seconds,
        "blocks": found.blocks,
        "devices": found.devices,
        "positions": found.positions,
        "step_time_seconds": found.step_seconds,
    }
