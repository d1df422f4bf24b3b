"""Reading the plan a command was given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placer.cluster import Cluster
from placer.fingerprint import require_fresh
from placer.plans import Plan

ForCluster = Annotated[
    str | None, typer.Option("--cluster", metavar="CLUSTER", help="Refuse a plan that was made for other machines.")
]


def load_plan(path: Path, cluster: str | None) -> Plan:
    """The plan of a file; StalePlanError where it was made for another cluster than the one described."""
    plan = Plan.load(path)
    if cluster is not None:
        require_fresh(plan, cluster=Cluster.load(cluster))
    return plan
