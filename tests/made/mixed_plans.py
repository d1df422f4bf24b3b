"""Machines with GPUs and CPU workers, and plans on them."""

from __future__ import annotations

from dataclasses import replace

from placer.cluster.cluster import Cluster, Curve, Device, Host, Level, Link, Node
from placer.plans.plan import Plan

GPU = Device(
    name="gpu", backend="cuda", memory_bytes=2**33, memory_bandwidth=1e12, rates=(("float32", 1e13),),
    launch_seconds=5e-6, curve=Curve(points=((1.0, 1.0),)),
)  # fmt: skip
CPU = Device(
    name="worker", backend="cpu", memory_bytes=2**33, memory_bandwidth=2e10, rates=(("float32", 1e12),),
    launch_seconds=1e-6, curve=Curve(points=((1.0, 1.0),)),
)  # fmt: skip
PCIE = Link(name="pcie", latency_seconds=1e-5, bandwidth=1e10)
HOST = Host(link=PCIE, memory_bandwidth=1e11)


def machines(gpus: int, cpus: int, *, nodes: int = 1, gpu: Device = GPU, nic: float = 1e10) -> Cluster:
    """`nodes` nodes of so many GPUs and CPU workers, GPUs first, on a network of `nic` bytes a second."""
    kinds = tuple((chip, count) for chip, count in ((gpu, gpus), (CPU, cpus)) if count)
    out = Link(name="nic", latency_seconds=2e-5, bandwidth=nic)
    node = Node(name="node", devices=kinds, link=PCIE, nic=out, host=HOST)
    return Cluster(name="mixed", groups=((node, nodes),), levels=(Level(name="fabric", link=out),))


def on(plan: Plan, cluster: Cluster, places: tuple[int, ...] = (), bucket_bytes: int = 2**12) -> Plan:
    """`plan` with the i-th of its devices at `places[i]` of `cluster` (as numbered, where none are given)."""
    at = places or tuple(range(cluster.size))
    stages = tuple(replace(stage, devices=tuple(at[device] for device in stage.devices)) for stage in plan.stages)
    return replace(plan, cluster=cluster, stages=stages, bucket_bytes=bucket_bytes)
