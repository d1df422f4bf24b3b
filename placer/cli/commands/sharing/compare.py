"""Put plans side by side: what differs, seconds and bytes by item, their steps on one axis, measured seconds.

placer compare mine.json best.json --html compared.html
placer compare mine.json best.json --measure
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from placer import legality
from placer.cli.options import ForCluster, Json, load_plan, print_result, warn
from placer.errors import UsageError, require_extra
from placer.io.files import require_writable, write_text
from placer.plans.plan import Plan
from placer.report.differences import compared_document, compared_view
from placer.report.printing import seconds_text
from placer.report.strategies.measured import MeasuredPlan, measured_document, measured_view


def run(
    plan_files: Annotated[
        list[Path], typer.Argument(metavar="PLAN...", help="Two plans or more, made by `placer plan`.")
    ],
    html: Annotated[
        Path | None, typer.Option(help="Also write a page that opens without a network; `-` is standard output.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run the plans on this machine in turns, under torchrun.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=2, help="With --measure: how often each plan has its turn.")] = 5,
    steps: Annotated[int, typer.Option(min=2, help="With --measure: steps of a turn.")] = 20,
    cluster: ForCluster = None,
    json: Json = False,
) -> None:
    """Read, measure, print, draw."""
    if len(plan_files) < 2:
        raise UsageError("one plan was given; name two or more to compare, or look at one with placer report")
    if html is not None:
        require_writable(html)
        require_extra("html", "bokeh")
    plans = {name: load_plan(path, cluster) for name, path in _named(plan_files).items()}
    for plan in plans.values():
        legality.require(plan)
    measured = _measured(plans, rounds, steps) if measure else []
    if html is not None:
        from placer.report.page.compared import compared_page  # what draws is an extra

        write_text(html, compared_page(plans, measured))
    if str(html) != "-":
        view, document = compared_view(plans), compared_document(plans)
        if measured:
            view = Group(view, measured_view(measured))
            document |= {"measured": measured_document(measured)["plans"]}
        print_result(view, document, json)


def _named(files: list[Path]) -> dict[str, Path]:
    """Files by what is needed of their paths to tell them apart. Raises UsageError for one that is named twice."""
    if len({path.resolve() for path in files}) < len(files):
        raise UsageError("a plan is named twice; name different files")
    short = [path.stem for path in files]
    return {str(path) if short.count(path.stem) > 1 else path.stem: path for path in files}


def _measured(plans: dict[str, Plan], rounds: int, steps: int) -> list[MeasuredPlan]:
    """The seconds of each, in turns. Raises UsageError where a plan is of devices that are not here."""
    from placer.runtime.bench import measured_in_turns  # the runtime needs torch; comparing does not

    def told(turn: int, name: str, seconds: float) -> None:
        warn([f"round {turn + 1} of {rounds}, {name}: {seconds_text(seconds)} a step"])

    for name, plan in plans.items():
        if not plan.cluster.measured:
            raise UsageError(
                f"--measure runs plans on this machine, and {name} is for {plan.cluster.name}, which was not measured "
                "here; plan for local or localx2, say"
            )
    found = measured_in_turns(plans, rounds=rounds, steps=steps, told=told)
    return [
        MeasuredPlan(
            case=next(iter(plans.values())).graph.name, strategies=(name,), measured_seconds=seconds,
            predicted_seconds=plan.ledger.step_seconds,
        )
        for name, seconds in found.items()
        if (plan := plans[name]).ledger
    ]  # fmt: skip
