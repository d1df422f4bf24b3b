"""Plans on nodes that are alike and unlike, and how they are asked to be started."""

from __future__ import annotations

from dataclasses import replace

from graphs import BlockSpec, chain_graph
from placer.cluster.cluster import Cluster, Device, Link, Node
from placer.plans.plan import ModelRef, Plan, Stage
from placer.plans.settings import RunSettings
from placer.targets.launchers.asked import LaunchAsked
from problems import device

ASKED = LaunchAsked(plan="/plans/my plan.json", image="registry/placer:1", flags=("--steps", "2"))
NIC = Link(name="nic", latency_seconds=1e-5, bandwidth=1e9)
GPU = replace(device(name="H100 80GB SXM5"), backend="cuda")


def node(name: str, count: int, chip: Device = GPU) -> Node:
    return Node(
        name=name, devices=((chip, count),), link=Link(name="in", latency_seconds=1e-6, bandwidth=1e10), nic=NIC
    )


def plan_on(*groups: tuple[Node, int], order: tuple[int, ...] = ()) -> Plan:
    """A stage for each device, in this order."""
    made = Cluster(name="made", groups=groups)
    devices = order or tuple(range(made.size))
    return Plan(
        model=ModelRef(kind="factory", reference="models:build", fingerprint="0"),
        graph=chain_graph([BlockSpec()] * len(devices)), cluster=made, settings=RunSettings(),
        stages=tuple(Stage(first=i, last=i + 1, devices=(one,)) for i, one in enumerate(devices)),
        schedule="1f1b", microbatches=(1, 1),
    )  # fmt: skip


ALIKE = plan_on((node("box", 2), 2))
UNLIKE = plan_on((node("big", 2), 1), (node("small", 1, replace(GPU, name="A100 80GB")), 1))
