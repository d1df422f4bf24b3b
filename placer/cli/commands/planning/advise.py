"""Say which machines to rent for a model: tokens a second, dollars a million tokens, what fits, the cheapest in time.

Exit 1 where no machine trains it, in time where a time is given.

Example: placer advise examples.models:llama3_8b --batch 512x4096 --precision bfloat16 --tokens 1e9 --deadline 24h
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from placer.api import problem
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
from placer.cli.options import Batch, Json, Model, print_result, warn
from placer.cluster.prices import read_offers
from placer.errors import InfeasibleError, UsageError
from placer.io.files import require_writable, write_text
from placer.io.units import duration
from placer.plans.settings import RunSettings
from placer.search.asked import budget_of

if TYPE_CHECKING:
    from placer.strategies.advise.machines import Work

Machines = Annotated[
    str | None, typer.Option("--machines", metavar="FILE", help="A price list; default: the catalogue's own.")
]
Only = Annotated[list[str] | None, typer.Option(help="Only the machine of this name; again for several.")]
Counts = Annotated[str | None, typer.Option(help="How many of each machine, 1,2,4, instead of what the list says.")]
Tokens = Annotated[float | None, typer.Option(help="Tokens to train (rows of a model without tokens), as in 1e9.")]
Deadline = Annotated[str | None, typer.Option(help="Within this time: 90min, 24h or 3d; needs --tokens.")]
Csv = Annotated[str | None, typer.Option(help="Write the answers here, a line each; - is stdout.")]
Budget = Annotated[str | None, typer.Option(help="Of each search: 200 evaluated plans, 30s, or 200,30s.")]


def run(
    model: Model,
    machines: Machines = None,
    only: Only = None,
    counts: Counts = None,
    batch: Batch = None,
    loss: Loss = None,
    tokens: Tokens = None,
    deadline: Deadline = None,
    csv: Csv = None,
    pin: Pin = None,
    opaque: Opaque = None,
    strategy: Strategy = "auto",
    precision: Precision = "float32",
    optimizer: Optimizer = "adamw",
    recompute: Recompute = "auto",
    attention: Attention = "flash",
    offload: Offload = "none",
    budget: Budget = None,
    json: Json = False,
) -> None:
    """Read prices, capture once, search for each, print."""
    from placer.report.advice import Advice, advice_csv, advice_document, advice_view
    from placer.strategies.advise.machines import advised, token_shape

    if csv is not None:
        require_writable(csv)
    work, limits = _work(tokens, deadline), budget_of(budget)
    asked_for, told = _counts(counts), (lambda why: warn((why,)))
    offers = read_offers(machines, counts=asked_for, machines=only or (), left_out=told if asked_for else None)
    asked = problem(
        model, max((offer.cluster for offer in offers), key=lambda cluster: cluster.size),
        batch=batch, loss_fn=loss_function(loss),
        settings=RunSettings(
            precision=precision, optimizer=optimizer, recompute=recompute, attention=attention, offload=offload
        ),
        pins=pin or (), opaque=opaque or (),
    )  # fmt: skip
    asked = replace(asked, budget=limits.evaluations)
    shape = token_shape(asked.graph)
    advice = Advice(
        model=asked.graph.name,
        batch=f"{'x'.join(map(str, shape))} tokens" if shape else f"{asked.rows} rows",
        unit="tokens" if shape else "rows",
        answers=advised(asked, offers, strategy, work=work, seconds=limits.seconds),
        work=work,
    )
    if csv is not None:
        write_text(csv, advice_csv(advice))
    if csv != "-":
        print_result(advice_view(advice), advice_document(advice), json)
    if not advice.found:
        raise typer.Exit(InfeasibleError.exit_code)


def _work(tokens: float | None, deadline: str | None) -> Work | None:
    from placer.strategies.advise.machines import Work

    if tokens is None:
        if deadline is not None:
            raise UsageError(f"--deadline {deadline} of what? Say how much is to be trained, as in --tokens 1e9")
        return None
    if not 0 < tokens < float("inf"):
        raise UsageError(f"--tokens is {tokens}; give a number above 0, as in 1e9")
    return Work(units=tokens, deadline=None if deadline is None else duration(deadline))


def _counts(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 and int(part) > 0 for part in parts):
        raise UsageError(f"--counts {text!r} is no list of counts; write 1,2,4")
    return tuple(int(part) for part in parts)
