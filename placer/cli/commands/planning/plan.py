"""Find the fastest plan that fits, and say what it will cost.

Example: placer plan examples.gpt:build --cluster localx2 --batch 8x128 -o plan.json
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer
from rich.console import Group

from placer.api import plan as make_plan
from placer.cli.options import Batch, ClusterSpec, Json, Model, parsed_loads, print_result
from placer.costs.data_path.data_set import read_data_set
from placer.costs.data_path.path import fed
from placer.errors import UsageError
from placer.graph import Granularity as GranularityName
from placer.io.files import require_writable
from placer.io.usercode import named
from placer.plans.settings import GradientCompression as GradientCompressionName
from placer.plans.settings import Precision as PrecisionName
from placer.plans.settings import RunSettings
from placer.report.data_path import data_path_document, data_path_view
from placer.report.documents import plan_document
from placer.report.plan_table import plan_view
from placer.search.asked import KNOWN
from placer.search.progress import Progress

if TYPE_CHECKING:
    from placer.tracer import LossFunction


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
Strategy = Annotated[
    str,
    typer.Option(
        help="auto, stages, min_cut, horizontal, local, genetic, policy, exhaustive, single, data, sharded, even, "
        "megatron, heft, etf, sct, critical_path, greedy or metis."
    ),
]
Granularity = Annotated[
    GranularityName, typer.Option(help="What is placed whole: layers and what stands for them, or single ops.")
]
For = Annotated[str, typer.Option("--for", help="Only plans that this framework can be told, as for placer export.")]
Precision = Annotated[PrecisionName, typer.Option(help="What the step computes in.")]
Optimizer = Annotated[Literal["adamw", "sgd"], typer.Option(help="The update rule.")]
LearningRate = Annotated[float, typer.Option(help="The learning rate of the run.")]
WeightDecay = Annotated[float, typer.Option(help="The weight decay of AdamW and SGD.")]
Momentum = Annotated[float, typer.Option(help="The momentum of SGD.")]
ClipNorm = Annotated[float, typer.Option(min=0.0, help="Clip gradients to this global norm; 0 is never.")]
Recompute = Annotated[
    Literal["auto", "none", "selective", "full"],
    typer.Option(help="Run forwards again instead of keeping activations; selective: all but products."),
]
Attention = Annotated[Literal["flash", "eager"], typer.Option(help="Whether attention scores are kept out of memory.")]
BatchNorm = Annotated[
    Literal["exact", "microbatch"],
    typer.Option(help="Take the statistics of batch norms from the whole batch, or from the rows of each piece of it."),
]
GradientCompression = Annotated[
    GradientCompressionName,
    typer.Option(help="Cast gradients to 16 bits while replicas sum them: half the bytes; it changes the mathematics."),
]
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
Islands = Annotated[
    int | None,
    typer.Option(
        help="Populations of --strategy genetic, on as many cores, which share its budget: by default 4 within 16000 "
        "evaluations or more, else 1."
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="With --strategy genetic: keep the search in this file, and go on from where it was if there is one.",
    ),
]
DataSet = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A data set file: say its way to the devices, what binds there, and what helps."),
]
SearchLogFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write here how the best plan and the bound came about, for placer report."),
]
Seed = Annotated[int, typer.Option(help="Seed of the search and of the initial weights.")]


def run(
    model: Model,
    cluster: ClusterSpec = "local",
    batch: Batch = None,
    loss: Loss = None,
    output: Output = None,
    pin: Pin = None,
    opaque: Opaque = None,
    granularity: Granularity = "block",
    framework: For = "",
    strategy: Strategy = "auto",
    precision: Precision = "float32",
    optimizer: Optimizer = "adamw",
    learning_rate: LearningRate = 1e-3,
    weight_decay: WeightDecay = 0.01,
    momentum: Momentum = 0.0,
    clip_norm: ClipNorm = 1.0,
    recompute: Recompute = "auto",
    batch_norm: BatchNorm = "exact",
    gradient_compression: GradientCompression = "none",
    attention: Attention = "flash",
    offload: Offload = "none",
    expert_loads: ExpertLoads = None,
    budget: Budget = None,
    islands: Islands = None,
    resume: Resume = None,
    data_set: DataSet = None,
    search_log: SearchLogFile = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Plan, print, save."""
    if output is not None:
        require_writable(output)  # before the search, not after it
    if search_log is not None:
        require_writable(search_log)
    samples = read_data_set(data_set) if data_set else None
    _require_momentum_of(optimizer, momentum)
    settings = RunSettings(
        precision=precision, optimizer=optimizer, learning_rate=learning_rate, weight_decay=weight_decay,
        momentum=momentum, clip_norm=clip_norm or None, recompute=recompute, attention=attention, offload=offload,
        batch_norm=batch_norm, gradient_compression=gradient_compression,
        expert_loads=parsed_loads(expert_loads) if expert_loads else (),
    )  # fmt: skip
    progress = Progress()
    made = make_plan(
        model, cluster, batch=batch, loss_fn=loss_function(loss),
        settings=settings, strategy=strategy, budget=budget, seed=seed, pins=pin or (), opaque=opaque or (),
        granularity=granularity, framework=framework, islands=islands, resume=resume, progress=progress,
    )  # fmt: skip
    if search_log is not None:
        progress.log().save(search_log)
    made, path = fed(made, samples) if samples else (made, None)
    if output is not None:
        made.save(output)
    if output != "-":
        view, document = plan_view(made), plan_document(made)
        if path is not None:
            view, document = Group(view, data_path_view(path)), document | {"data_path": data_path_document(path)}
        print_result(view, document, json)


def _require_momentum_of(optimizer: str, momentum: float) -> None:
    """Raise UsageError where momentum is given to an optimizer that has none."""
    if momentum and optimizer != "sgd":
        raise UsageError(
            f"--momentum {momentum:g} is SGD's, the optimizer is {optimizer}; add --optimizer sgd, or drop it"
        )


def loss_function(name: str | None) -> LossFunction | None:
    """The function of that reference."""
    return cast("LossFunction", named(name, "the loss")) if name else None
