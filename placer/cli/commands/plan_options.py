"""The flags of `placer plan`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from placer.plans.settings import Precision as PrecisionName
from placer.search.pins import KNOWN

Loss = Annotated[
    str | None, typer.Option(help="package.module:function of (output, batch), for a model that returns no loss.")
]
Output = Annotated[str | None, typer.Option("-o", "--output", help="Write plan.json here; - is stdout.")]
Pin = Annotated[
    list[str] | None,
    typer.Option(help=f"Fix a choice, NAME=VALUE: {KNOWN}."),
]
Opaque = Annotated[
    list[str] | None, typer.Option(help="A submodule that is not looked into: one op, counted by running it once.")
]
Strategy = Annotated[str, typer.Option(help="auto, stages, exhaustive, single, data, sharded, even or megatron.")]
Precision = Annotated[PrecisionName, typer.Option(help="What the step computes in.")]
Optimizer = Annotated[Literal["adamw", "sgd"], typer.Option(help="The update rule.")]
LearningRate = Annotated[float, typer.Option(help="The learning rate of the run.")]
WeightDecay = Annotated[float, typer.Option(help="The weight decay of AdamW and SGD.")]
Momentum = Annotated[float, typer.Option(help="The momentum of SGD.")]
ClipNorm = Annotated[float, typer.Option(min=0.0, help="Clip gradients to this global norm; 0 is never.")]
Recompute = Annotated[
    Literal["auto", "none", "full"], typer.Option(help="Run forwards again instead of keeping activations.")
]
Attention = Annotated[Literal["flash", "eager"], typer.Option(help="Whether attention scores are kept out of memory.")]
Offload = Annotated[
    Literal["none", "optimizer"], typer.Option(help="Keep the optimizer's state on the host, which then updates.")
]
ExpertLoads = Annotated[
    str | None,
    typer.Option(help="How many tokens each expert gets beside the others: 8,1,1,1, or a file with such numbers."),
]
Budget = Annotated[
    str | None, typer.Option(help="End with the best so far after 200 evaluated plans, 30s of search, or 200,30s.")
]
Seed = Annotated[int, typer.Option(help="Seed of the search and of the initial weights.")]
