"""Say how much of a model fits on machines one has: the largest batch, context length or depth, and what binds.

Example: placer fit examples.models:llama3_8b --cluster h100x8 --grow length --batch 8x4096 --precision bfloat16
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Annotated, Literal

import typer

from placer.api import capture, problem
from placer.cli.commands.planning.plan import (
    Attention,
    Loss,
    Offload,
    Opaque,
    Optimizer,
    Pin,
    Precision,
    Recompute,
    Strategy,
    loss_function,
)
from placer.cli.options import Batch, ClusterSpec, Json, Model, print_result
from placer.errors import Infeasible, InfeasibleError, UsageError
from placer.io.model_config import MOST_BUILT
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.search.problem import Problem
from placer.search.progress_line import progress_line

Grow = Annotated[
    Literal["batch", "length", "depth"],
    typer.Option(help="What grows: rows computed at once, tokens of a row, or layers; the rest stays."),
]
Step = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Sizes are multiples of this; default: the devices (and pinned microbatches), 128 tokens, a layer.",
    ),
]
Most = Annotated[int | None, typer.Option(min=1, help="No size beyond this is tried.")]
MOST_SIZES = {"batch": 2**20, "length": 2**22, "depth": MOST_BUILT}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """What is grown: the problem as it was asked, and what it was captured from."""

    asked: Problem
    model: str
    loss: str | None
    opaque: Sequence[str]

    def sized(self, grown: str, size: int) -> Problem:
        """The problem at that size. Raises UsageError for a model that has no such size."""
        if grown == "batch":
            return replace(self.asked, graph=replace(self.asked.graph, rows=size), rows=size)
        from placer import tracer
        from placer.tracer.inputs.resized import with_depth, with_positions

        built = tracer.resolve(self.model).build("meta")
        length = size if grown == "length" else self.length
        config = with_positions(built, size) if grown == "length" else with_depth(built, size)
        graph = capture(
            config, batch=f"{self.asked.rows}x{length}", loss_fn=loss_function(self.loss), opaque=self.opaque,
            precision=self.asked.settings.precision,
        )  # fmt: skip
        return replace(self.asked, graph=graph)

    @property
    def length(self) -> int:
        """Tokens of a row. Raises UsageError for a model without tokens."""
        from placer.strategies.advise.machines import token_shape

        shape = token_shape(self.asked.graph)
        if len(shape) != 2:
            raise UsageError(f"{self.asked.graph.name} has no rows of tokens; ask for --grow batch")
        return shape[1]


def run(
    model: Model,
    cluster: ClusterSpec = "local",
    grow: Grow = "batch",
    batch: Batch = None,
    step: Step = None,
    most: Most = None,
    loss: Loss = None,
    pin: Pin = None,
    opaque: Opaque = None,
    strategy: Strategy = "auto",
    precision: Precision = "float32",
    optimizer: Optimizer = "adamw",
    recompute: Recompute = "auto",
    attention: Attention = "flash",
    offload: Offload = "none",
    json: Json = False,
) -> None:
    """Capture, try sizes, print."""
    from placer.report.fit import fit_document, fit_view
    from placer.strategies.advise.fit import fitted, largest

    given, at_once = _pins(grow, pin or ())
    asked = problem(
        model, cluster, batch=batch, loss_fn=loss_function(loss),
        settings=RunSettings(
            precision=precision, optimizer=optimizer, recompute=recompute, attention=attention, offload=offload
        ),
        pins=given, opaque=opaque or (),
    )  # fmt: skip
    growing = Growing(asked=asked, model=model, loss=loss, opaque=opaque or ())
    attempt: Callable[[int], Plan | str] = lambda size: fitted(growing.sized(grow, size), strategy)  # noqa: E731
    step = _step(step, grow, asked)
    first = _first(step, most, grow, asked)
    with progress_line():
        fit = largest(attempt, step=step, most=most or max(MOST_SIZES[grow], first * step), first=first)
    if not fit.size:
        raise InfeasibleError(Infeasible(binding=f"not even a {grow} of {first * step} fits: {fit.binding}"))
    print_result(fit_view(fit, grow, at_once), fit_document(fit, grow, at_once), json)


def _step(given: int | None, grow: str, asked: Problem) -> int:
    """What sizes are multiples of. Raises UsageError for one that pinned microbatches do not divide."""
    pinned = asked.pins.microbatches or 1
    if given is None:
        return {"batch": lcm(asked.cluster.size, pinned), "length": 128}.get(grow, 1)
    if grow == "batch" and given % pinned:
        raise UsageError(
            f"--step {given} was asked for with --pin microbatches={pinned}, into which not every number of rows can "
            f"be divided; give a multiple of {pinned}, as {lcm(given, pinned)}"
        )
    return given


def _first(step: int, most: int | None, grow: str, asked: Problem) -> int:
    """How many steps the smallest size has: in a batch each pinned replica has a row of each microbatch. Raises
    UsageError where that is beyond the largest asked for."""
    rows = (asked.pins.data or 1) * (asked.pins.microbatches or 1)
    first = -(-rows // step) if grow == "batch" else 1
    if most is not None and most < first * step:
        raise UsageError(
            f"--most {most} is below the first {grow} to be tried, {first * step}; give more, or less --step"
        )
    return first


def _pins(grow: str, pins: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The pins to search under, and what to tell of them: a batch in microbatches would have no largest."""
    if grow != "batch" or any(text.startswith("microbatches=") for text in pins):
        return tuple(pins), ()
    return (*pins, "microbatches=1"), ("all rows at once: in microbatches, more rows fit (--pin microbatches=N)",)
