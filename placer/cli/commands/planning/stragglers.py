"""Say what ranks whose seconds vary make of a step: synchronous, local and stale training, and the best rows.

Example: placer stragglers examples/measured/cpu_beside_gpus.yaml --average-every 8 --staleness 2
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.options import Json, print_result
from placer.costs.variability.rank_file import read_unsteady_ranks
from placer.costs.variability.ranks import Division
from placer.costs.variability.synchronies import UnsteadyStep, Variability, variability
from placer.report.documents import Document
from placer.report.printing import seconds_text, share_text, table, titled

EVERY, LATE = (2, 8), (1, 2, 4)


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The ranks and their seconds.", show_default=False)],
    average_every: Annotated[
        list[int] | None, typer.Option(min=1, help="Local SGD: steps between averages; several times. Default: 2, 8.")
    ] = None,
    staleness: Annotated[
        list[int] | None, typer.Option(min=0, help="Stale: how late gradients are; several times. Default: 1, 2, 4.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the steps that are played for stale training.")] = 0,
    json: Json = False,
) -> None:
    """Read, predict, print."""
    found = variability(read_unsteady_ranks(file), average_every or EVERY, staleness or LATE, seed)
    print_result(stragglers_view(found), stragglers_document(found), json)


def stragglers_view(found: Variability) -> RenderableType:
    """Ranks, steps and divisions as tables, what they leave out below."""
    kinds = table("ranks", "count", "rows of each", "mean", "deviation", left=1)
    for kind in found.ranks.kinds:
        kinds.add_row(
            kind.name,
            str(kind.count),
            str(kind.rows),
            seconds_text(kind.times.mean),
            seconds_text(kind.times.deviation),
        )
    steps = table("training", "a step takes", "of it waiting", left=1)
    for one in (found.steady, *found.steps):
        error = f" ± {seconds_text(one.error)}" if one.error else ""
        steps.add_row(one.training, seconds_text(one.seconds) + error, share_text(found.waiting(one)))
    parts: list[RenderableType] = [titled(found.ranks.name, kinds), titled("seconds of a step", steps)]
    if len(found.ranks.kinds) > 1:
        rows = table("rows", *(kind.name for kind in found.ranks.kinds), "a synchronous step takes", left=1)
        for name, division in _divisions(found):
            rows.add_row(name, *map(str, division.rows), seconds_text(division.seconds + found.ranks.communication))
        parts.append(titled("rows of all ranks of a kind", rows))
    return Group(*parts, *map(Text, _notes(found)))


def stragglers_document(found: Variability) -> Document:
    """The same with units in the keys."""
    return {
        "ranks": [
            {
                "name": kind.name, "count": kind.count, "rows": kind.rows, "mean_seconds": kind.times.mean,
                "deviation_seconds": kind.times.deviation,
            }
            for kind in found.ranks.kinds
        ],
        "communication_seconds": found.ranks.communication,
        "averaging_seconds": found.ranks.averaging,
        "shared_deviation_seconds": found.ranks.shared,
        "steady_seconds": found.steady.seconds,
        "steps": [_step_document(found, one) for one in found.steps],
        "divisions": [
            {"rows": name, "of_kinds": list(one.rows), "step_seconds": one.seconds + found.ranks.communication}
            for name, one in _divisions(found)
        ],
        "notes": list(_notes(found)),
    }  # fmt: skip


def _step_document(found: Variability, one: UnsteadyStep) -> Document:
    return {
        "training": one.training,
        "step_seconds": one.seconds,
        "standard_error_seconds": one.error,
        "waiting": found.waiting(one),
    }


def _divisions(found: Variability) -> tuple[tuple[str, Division], ...]:
    return ("as given", found.given), ("by speed", found.even), ("best", found.best)


def _notes(found: Variability) -> Iterator[str]:
    yield "ranks and steps are taken to vary independently" + (
        f", but for a deviation of {seconds_text(found.ranks.shared)} that delays all alike" * bool(found.ranks.shared)
    )
    yield "plans are searched without this; to run other rows, edit the shares of the plan's stage"
    yield "local and stale training change the mathematics; run them with --own-loss, else ranks wait for the loss"
