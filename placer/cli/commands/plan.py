"""`placer plan`: find a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from placer.api import plan as make_plan
from placer.cli.commands import plan_options as flags
from placer.cli.options import Batch, ClusterSpec, Json, Model, parsed_loads
from placer.cli.output import print_result
from placer.errors import UsageError
from placer.io.files import require_writable
from placer.io.usercode import named
from placer.plans.settings import RunSettings
from placer.report.documents import plan_document
from placer.report.plan_table import plan_view

if TYPE_CHECKING:
    from placer.tracer import LossFunction


NAME = "plan"
HELP = """Find the fastest plan that fits, and say what it will cost.

Example: placer plan examples.gpt:build --cluster localx2 --batch 8x128 -o plan.json
"""


def run(
    model: Model,
    cluster: ClusterSpec = "local",
    batch: Batch = None,
    loss: flags.Loss = None,
    output: flags.Output = None,
    pin: flags.Pin = None,
    opaque: flags.Opaque = None,
    strategy: flags.Strategy = "auto",
    precision: flags.Precision = "float32",
    optimizer: flags.Optimizer = "adamw",
    learning_rate: flags.LearningRate = 1e-3,
    weight_decay: flags.WeightDecay = 0.01,
    momentum: flags.Momentum = 0.0,
    clip_norm: flags.ClipNorm = 1.0,
    recompute: flags.Recompute = "auto",
    attention: flags.Attention = "flash",
    offload: flags.Offload = "none",
    expert_loads: flags.ExpertLoads = None,
    budget: flags.Budget = None,
    seed: flags.Seed = 0,
    json: Json = False,
) -> None:
    """Plan, print, save."""
    if output is not None:
        require_writable(output)  # before the search, not after it
    settings = RunSettings(
        precision=precision, optimizer=optimizer, learning_rate=learning_rate, weight_decay=weight_decay,
        momentum=momentum, clip_norm=clip_norm or None, recompute=recompute, attention=attention, offload=offload,
        expert_loads=parsed_loads(expert_loads) if expert_loads else (),
    )  # fmt: skip
    made = make_plan(
        model, cluster, batch=named_shapes(batch) if batch and "=" in batch else batch, loss_fn=_loss_function(loss),
        settings=settings, strategy=strategy, budget=budget, seed=seed, pins=pin or (), opaque=opaque or (),
    )  # fmt: skip
    if output is not None:
        made.save(output)
    if output != "-":
        print_result(plan_view(made), plan_document(made), json)


def _loss_function(name: str | None) -> LossFunction | None:
    return cast("LossFunction", named(name, "the loss")) if name else None


def named_shapes(text: str) -> dict[str, object]:
    """`x=8x128,y=8:int64` as shapes by name, with their types where given. Raises UsageError for what is no shape."""
    shapes: dict[str, object] = {}
    for part in text.split(","):
        name, _, rest = part.strip().partition("=")
        shape, typed, dtype = rest.partition(":")
        sizes = shape.split("x")
        if not name or not all(size.isdecimal() and int(size) > 0 for size in sizes) or (typed and not dtype):
            raise UsageError(
                f"--batch {part!r} is no named shape; write NAME=ROWSxSIZE, as in input_ids=8x128, or with a type, "
                "as in y=8:int64"
            )
        if name in shapes:
            raise UsageError(f"--batch names {name!r} twice; give each input once")
        numbers = tuple(int(size) for size in sizes)
        shapes[name] = (numbers, dtype) if typed else numbers
    return shapes
