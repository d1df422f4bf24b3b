"""Reading the plan a command was given."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from placer import legality
from placer.cli.output import first_rank
from placer.cluster.cluster import Cluster
from placer.costs.step_estimate import estimate
from placer.errors import UsageError
from placer.io.files import read_text
from placer.plans.plan import Plan, is_edited
from placer.plans.provenance import require_fresh

ForCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="CLUSTER", help="Refuse a plan that was made for other machines.")
]


def load_plan(path: Path, cluster: str | None, *, illegal: bool = False) -> Plan:
    """The plan of a file; StalePlanError where it was made for another cluster than the one described.

    What was predicted for a plan that somebody has changed since is predicted anew, and said so; one that breaks rules
    now is refused, unless `illegal` asks for it as it is, without a prediction.
    """
    text = read_text(path, "the plan")
    plan = Plan.from_json(text, str(path))
    if cluster is not None:
        require_fresh(plan, cluster=Cluster.load(cluster))
    return _predicted_anew(plan, path, illegal) if is_edited(text) else plan


def _predicted_anew(plan: Plan, path: Path, illegal: bool) -> Plan:
    """The plan with a prediction of what it says now; without any where it breaks rules."""
    if not illegal:
        legality.require(plan)
    if plan.rows != plan.graph.rows:
        raise UsageError(
            f"{path} was changed: its microbatches add up to {plan.rows} rows, its batch has {plan.graph.rows}; "
            "make them add up, or plan again with another --batch"
        )
    if first_rank():
        print(
            f"placer: {path} was changed since placer wrote it (or an older placer wrote it): seconds and bytes are "
            "predicted anew, its bound and runners-up may not hold any more and are left out",
            file=sys.stderr,
        )
    ledger = None if legality.check(plan) else estimate(plan)
    return replace(plan, ledger=ledger, bound=None, alternatives=())
