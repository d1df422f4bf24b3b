"""What a plan was made with, and what has changed since: versions of libraries, the machine, the cluster, the model.

A plan made with another minor version of torch, transformers or placer is refused: the captured graph may differ. One
made on another machine may run; it names code to import, so the user is told.
"""

from __future__ import annotations

from pydantic import TypeAdapter

from placer.cluster.cluster import Cluster
from placer.errors import StalePlanError
from placer.io.usercode import named
from placer.io.versions import LIBRARIES, MACHINE, digest, installed, machine
from placer.plans.plan import Plan


def cluster_fingerprint(cluster: Cluster) -> str:
    """Identifies everything a cluster says."""
    return digest(TypeAdapter(Cluster).dump_json(cluster).decode())


def changes(plan: Plan, *, model: str | None = None, cluster: Cluster | None = None) -> tuple[str, ...]:
    """What has changed since `plan` was made, in words; `model` is a fingerprint. None is not compared."""
    found = []
    if model is not None and plan.model.fingerprint and model != plan.model.fingerprint:
        found.append(f"the model (fingerprint {plan.model.fingerprint} in the plan, {model} now)")
    if cluster is not None and cluster_fingerprint(cluster) != cluster_fingerprint(plan.cluster):
        found.append(f"the cluster ({plan.cluster.name} in the plan, {cluster.name} now, or its constants)")
    for name, recorded in plan.versions:
        now = installed(name)
        if name in LIBRARIES and _minor(recorded) != _minor(now):
            found.append(f"{name} ({recorded} in the plan, {now} now)")
    return tuple(found)


def require_fresh(plan: Plan, *, model: str | None = None, cluster: Cluster | None = None) -> None:
    """Raise StalePlanError saying what has changed, if anything has."""
    found = changes(plan, model=model, cluster=cluster)
    if found:
        raise StalePlanError(f"the plan is stale, this has changed: {'; '.join(found)}. Plan again with `placer plan`")


def import_model(plan: Plan) -> None:
    """Import the module that the plan's model is made by, which may register rules for ops of its own."""
    if plan.model.kind == "factory":
        named(plan.model.reference, "the model")


def made_elsewhere(plan: Plan) -> bool:
    """Whether the plan says that it was made on another machine."""
    return dict(plan.versions).get(MACHINE, machine()) != machine()


def _minor(text: str) -> tuple[str, ...]:
    """The part of a version whose change matters: major and minor."""
    return tuple(text.split("+")[0].split(".")[:2])
